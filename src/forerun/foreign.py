"""Names in other tools: llama.cpp, ollama, vLLM, SGLang, mlx-lm, transformers."""

from __future__ import annotations

from collections.abc import Container, Iterable

_LENGTH = "num-speculative-tokens"

# Flags and arguments that mean what ours mean; the command line takes them, Python names ours.
TAKEN = {
    "assistant-model": "draft-model",
    "context-length": "max-context",
    "ctx-size": "max-context",
    "draft": _LENGTH,
    "draft-max": _LENGTH,
    "draft-n": _LENGTH,
    "file": "prompt-file",
    "gamma": _LENGTH,
    "max-model-len": "max-context",
    "max-new-tokens": "max-tokens",
    "max-num-seqs": "max-batch-size",
    "max-seq-len": "max-context",
    "model-draft": "draft-model",
    "model-path": "model",
    "n-ctx": "max-context",
    "n-parallel": "max-batch-size",
    "n-predict": "max-tokens",
    "num-assistant-tokens": _LENGTH,
    "num-draft-tokens": _LENGTH,
    "num-threads": "threads",
    "predict": "max-tokens",
    "prompt-lookup-num-tokens": _LENGTH,
    "random-seed": "seed",
    "spec-draft-model": "draft-model",
    "spec-draft-n-max": _LENGTH,
    "speculative-algorithm": "method",
    "speculative-draft-model-path": "draft-model",
    "speculative-draft-model-revision": "draft-revision",
    "speculative-model": "draft-model",
    "speculative-num-steps": _LENGTH,
    "system-prompt": "system",
    "temp": "temperature",
    "torch-dtype": "dtype",
}

# llama.cpp's, which would be read as a short flag of ours with a value behind it.
LONG_WITH_ONE_DASH = frozenset({"mg", "mm", "mu", "ngl", "ngld", "nkvo", "nocnv", "np", "ns"})

# Commands of other tools, and what to use in their place.
COMMANDS = {
    "pull": "a command that runs a model fetches it by itself: forerun generate -m Qwen/Qwen3-0.6B",
    "run": "use forerun generate for one answer, or forerun chat for a conversation",
}

# Flags that are near to one of ours: the first of ours that a command has is named, with the difference.
ADVICE: dict[str, tuple[tuple[str, ...], str]] = {
    "alpha": (("acceptance",), ""),
    "batch-size": (("batch",), ""),
    "cost": (("cost-ratio",), ""),
    "chat-template-kwargs": (("template-var",), "which takes NAME=VALUE"),
    "context-length": (("context",), ""),
    "ctx-size": (("context",), ""),
    "do-sample": (("temperature",), "where 0 is greedy"),
    "draft-max": (("lengths",), ""),
    "draft-model": (("draft",), ""),
    "gamma": (("lengths",), ""),
    "load-in-4bit": (("dtype",), "which takes int4"),
    "load-in-8bit": (("dtype",), "which takes int8"),
    "max-context": (("context",), ""),
    "max-model-len": (("context",), ""),
    "max-new-tokens": (("num-tokens",), ""),
    "max-tokens": (("num-tokens",), ""),
    "n-predict": (("num-tokens",), ""),
    "ngl": (("device",), "which is auto, cpu, cuda or mps"),
    "num-speculative-tokens": (("lengths",), ""),
    "precision": (("dtype",), ""),
    "quantization": (("dtype",), "which takes int8 and int4"),
    "repeat-penalty": (("repetition-penalty",), "which counts the whole prompt and output"),
    "speculative-config": (
        ("method",),
        "and its other keys are flags too: 'model' is '--draft-model', and 'revision' '--draft-revision'",
    ),
    "speculative-num-draft-tokens": ((_LENGTH,), "which does not count the target's own token"),
}


def own_flag(name: str, flags: Container[str]) -> str:
    """The name under which a command has a flag; other names as they are, with dashes.

    Args:
        name: as it was written, without the dashes before it.
        flags: of the command.
    """
    name = name.replace("_", "-")
    ours = TAKEN.get(name, name)
    return ours if name not in flags and ours in flags else name


def advice(name: str, flags: Container[str]) -> str | None:
    """Advice for a flag that a command does not have; None where nothing is near."""
    candidates, difference = ADVICE.get(name, ((), ""))
    ours = next((flag for flag in candidates if flag in flags), None)
    if ours is None:
        return None
    return f"It is called '--{ours}' here{difference and ', '}{difference}."


def in_words(names: Iterable[tuple[str, str]]) -> str:
    """Flags of other programs with forerun's equivalents, each once."""
    return ", ".join(f"--{name} as --{ours}" for name, ours in dict(names).items())
