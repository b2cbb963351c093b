"""GGUF, the file format of llama.cpp: one file holds a model, its tokenizer and its chat template."""
