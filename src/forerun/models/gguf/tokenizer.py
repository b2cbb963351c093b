"""The tokenizer in a GGUF file."""

from __future__ import annotations

from typing import Any

from forerun.errors import CheckpointError
from forerun.models.config import one_line
from forerun.models.gguf.header import GgufHeader

# Ways of splitting a text into words, by llama.cpp's names. These split off every digit first and then
# split as GPT-2 does. transformers (5.23) leaves out the first step, so `  2` would become other tokens
# than in training.
_DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# These keep a word that is a token, whatever its merges, and begin with BOS by default.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "tekken")
_AS_GPT2 = ("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion")


def read_gguf_tokenizer(header: GgufHeader) -> Any:
    """The tokenizer of a file, made by transformers, with the model's own way of splitting words.

    Raises:
        CheckpointError: if the file has none that transformers can make.
    """
    from transformers import PreTrainedTokenizerFast

    path = header.path
    _check_ids(header)
    try:
        # `from_pretrained` would prefer a tokenizer.json that lies beside the file.
        tokenizer = PreTrainedTokenizerFast(name_or_path=str(path.parent), gguf_file=path.name)
        _complete(tokenizer, header)
    except Exception as error:
        raise CheckpointError(
            f"{path} has no tokenizer that transformers can read ({one_line(error)}); "
            "take the original checkpoint."
        ) from error
    return tokenizer


def _check_ids(header: GgufHeader) -> None:
    """Refuse ids of special tokens beyond the vocabulary, such as 4294967295, which means none.

    Raises:
        CheckpointError: naming the key.
    """
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    for key, value in header.metadata.items():
        special = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if special and isinstance(tokens, list) and type(value) is int and value >= len(tokens):
            raise CheckpointError(
                f"{header.path}: {key} is {value}, and its vocabulary has {len(tokens)} tokens; remove the "
                "key (4294967295 stands for no token), or take another file."
            )


def _complete(tokenizer: Any, header: GgufHeader) -> None:
    """Add the parts of a tokenizer that llama.cpp knows and transformers leaves out."""
    from tokenizers import decoders, pre_tokenizers

    # llama.cpp adds a BOS to conversations as to any text; templates in such files write none.
    tokenizer.opens_conversations = True
    backend, splitting = tokenizer.backend_tokenizer, _splitting(header)
    if splitting in _DIGITS_FIRST:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    if splitting in _WHOLE_WORDS:
        backend.model.ignore_merges = True
        if "tokenizer.ggml.add_bos_token" not in header.metadata:
            tokenizer.add_bos_token = True
    spaced = header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    if header.metadata.get("tokenizer.ggml.model") == "llama" and not spaced:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )


def tokenizer_notes(header: GgufHeader) -> tuple[str, ...]:
    """Notes for the user on how a text is split, one sentence each."""
    from transformers.integrations import gguf

    name = _splitting(header)
    # The table has moved between versions of transformers.
    table = getattr(gguf, "gguf_tokenizer_mapping", None)
    known = getattr(table, "GGUF_PRE_TOKENIZER_SPLITS", {})
    if name is None or name in (*_DIGITS_FIRST, *_AS_GPT2, *known):
        return ()
    return (
        f"How its tokenizer splits words ({name}) is not known: it splits them as GPT-2 does, and some "
        "tokens may differ from those of training.",
    )


def _splitting(header: GgufHeader) -> Any:
    """Name of the way in which words are split; None for tokenizers that do not split first."""
    if header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return None
    return header.metadata.get("tokenizer.ggml.pre", "default")
