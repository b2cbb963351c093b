"""The tokenizer in a GGUF file, made without transformers, which would take as long to load as torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from forerun.errors import CheckpointError, shown
from forerun.models.config import check_end_tokens, one_line
from forerun.models.gguf.header import GgufHeader
from forerun.models.tokenizer import byte_letters

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Ways of splitting a text into words, by llama.cpp's names.
_SPLITS = {
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), _LLAMA3
    ),
    **dict.fromkeys(("midm-2.0", "lfm2", "jina-v5-nano", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _QWEN2),
    "tekken": _TEKKEN,
}
# These split off every digit first and then split as GPT-2 does.
_DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# These keep a word that is a token, whatever its merges, and begin with BOS by default.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "tekken")
_AS_GPT2 = ("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion")

# Types of tokens.
_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_NOT_MERGED = (_CONTROL, _USER_DEFINED, _BYTE)
_SPACE = "\u2581"
_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Special tokens that files of this kind of tokenizer leave out.
_DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unk": 0}}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens that, as in llama.cpp, end a text or a turn because of their names, whatever the file says.
_ENDS_BY_TEXT = frozenset(
    (
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "</s>"),
        *("<eos>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<turn|>", "[e~["),
        *("<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    )
)
# Where all of the first are there, the last ends only a part of the text.
_NO_ENDS = (
    *((("<|return|>", "<|call|>"), "<|end|>"), (("<|calls|>", "<|flush|>"), "<|end|>")),
    (("<|tool_response>",), "</s>"),
)
# Marks of parts of an answer in gpt-oss, which belong to its text.
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


class GgufTokenizer:
    """A tokenizer with what engines ask of those of transformers; transformers is imported for the rest.

    Args:
        backend: the tokenizer itself.
        named: special tokens by transformers' names, such as `bos_token`.
        chat_template: template of conversations.
    """

    clean_up_tokenization_spaces = False
    # llama.cpp adds a BOS to conversations as to any text; templates in such files write none.
    opens_conversations = True

    def __init__(self, backend: Tokenizer, named: dict[str, str], chat_template: Any) -> None:
        self.backend_tokenizer, self.chat_template = backend, chat_template
        self.special_tokens_map = named
        for name in _NAMED:
            text = named.get(f"{name}_token")
            setattr(self, f"{name}_token", text)
            setattr(self, f"{name}_token_id", None if text is None else backend.token_to_id(text))
        self.added_tokens_decoder = backend.get_added_tokens_decoder()
        special = {
            n: token.content for n, token in self.added_tokens_decoder.items() if token.special
        }
        self.all_special_ids, self.all_special_tokens = list(special), list(special.values())

    def encode(
        self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        """Token ids of a text; transformers encodes anything else, and with its other options."""
        if not isinstance(text, str) or text_pair is not None or options:
            return self.transformers.encode(text, text_pair, add_special_tokens, **options)
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Text of token ids; transformers decodes tensors, arrays and lists of lists."""
        plain = isinstance(token_ids, (list, tuple)) and not options
        if not plain or (token_ids and not isinstance(token_ids[0], int)):
            return self.transformers.decode(token_ids, skip_special_tokens, **options)
        return self.backend_tokenizer.decode(list(token_ids), skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """Ids of all tokens by their text."""
        return self.backend_tokenizer.get_vocab()

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.transformers(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "transformers":
            raise AttributeError(name)
        return getattr(self.transformers, name)

    @cached_property
    def transformers(self) -> Any:
        """The tokenizer as a `PreTrainedTokenizerFast`."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(
            tokenizer_object=self.backend_tokenizer,
            chat_template=self.chat_template,
            **self.special_tokens_map,
        )


def read_gguf_tokenizer(header: GgufHeader) -> GgufTokenizer:
    """The tokenizer of a file.

    Raises:
        CheckpointError: if the file has none that can be read.
    """
    _check_ids(header)
    try:
        return _read(header.metadata)
    except Exception as error:
        # The metadata may lack anything or be of any type, and tokenizers raises bare exceptions.
        raise CheckpointError(
            f"{header.path} has no tokenizer that can be read ({one_line(error)}); "
            "take the original checkpoint."
        ) from error


def _read(metadata: Mapping[str, Any]) -> GgufTokenizer:
    own = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if own.get("model") not in builders:
        raise ValueError(f"its kind is {own.get('model')!r}; known are {', '.join(builders)}")
    tokens, ids = own["tokens"], _special_ids(own)
    named = {f"{name}_token": tokens[n] for name, n in ids.items()}
    ends = _ends_by_text(tokens)
    kinds = dict(enumerate(own.get("token_type", ())))
    kinds |= dict.fromkeys((*ids.values(), *ends), _CONTROL)
    kinds |= {n: _USER_DEFINED for n, text in enumerate(tokens) if text in _SHOWN}
    backend = builders[own["model"]](own, kinds)
    special = dict.fromkeys(tokens[n] for n in sorted(kinds) if kinds[n] == _CONTROL)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    whole = [tokens[n] for n, kind in kinds.items() if kind == _USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=False) for text in whole])
    opens = own["model"] == "llama" or own.get("pre") in _WHOLE_WORDS
    _enclose(
        backend,
        named.get("bos_token") if own.get("add_bos_token", opens) else None,
        named.get("eos_token") if own.get("add_eos_token") else None,
    )
    return GgufTokenizer(backend, named, metadata.get("tokenizer.chat_template"))


def _special_ids(own: Mapping[str, Any]) -> dict[str, int]:
    """Ids of the special tokens that have a name, by transformers' short names."""
    ids = {name: own.get(f"{key}_token_id") for name, key in _NAMED.items()}
    defaults = _DEFAULTS.get(own["model"], {})
    found = {name: defaults.get(name) if n is None else n for name, n in ids.items()}
    return {name: n for name, n in found.items() if n is not None and n < len(own["tokens"])}


def _ends_by_text(tokens: Sequence[str]) -> set[int]:
    """Ids of the tokens that end a text because of their names."""
    found = {text: n for n, text in enumerate(tokens) if text in _ENDS_BY_TEXT}
    for others, text in _NO_ENDS:
        if found.keys() >= set(others):
            found.pop(text, None)
    return set(found.values())


def read_gguf_end_tokens(header: GgufHeader, vocab_size: int) -> frozenset[int]:
    """The tokens that end a text or a turn, by the file's metadata and by their names.

    Raises:
        CheckpointError: if one is not a token of the vocabulary.
    """
    prefix, metadata = "tokenizer.ggml.", header.metadata
    tokens = metadata.get(f"{prefix}tokens")
    named = {name: metadata.get(prefix + name) for name in _ENDS}
    if named["eos_token_id"] is None:
        defaults = _DEFAULTS.get(str(metadata.get(f"{prefix}model")), {})
        named["eos_token_id"] = defaults.get("eos")
    given = [token for token in named.values() if token is not None]
    given += _ends_by_text(tokens) if isinstance(tokens, list) else []
    return check_end_tokens(given, f"{header.path}: an end token", vocab_size)


def _byte_level(own: Mapping[str, Any], kinds: Mapping[int, int]) -> Tokenizer:
    """Pairs of bytes, merged inside the words of a text."""
    letters = byte_letters()
    alphabet = set(letters)
    # Tokens beside the text, such as <｜User｜>, are written as they are.
    beside = {n for n, kind in kinds.items() if kind in (_CONTROL, _USER_DEFINED)}
    vocab = {
        token
        if n in beside or alphabet.issuperset(token)
        else "".join(letters[byte] for byte in token.encode()): n
        for n, token in enumerate(own["tokens"])
    }
    name = own.get("pre", "default")
    backend = Tokenizer(
        models.BPE(
            vocab,
            [tuple(merge.split(" ")) for merge in own["merges"]],
            ignore_merges=name in _WHOLE_WORDS,
        )
    )
    first: list[Any] = []
    if name in _SPLITS:
        first = [pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated")]
    elif name in _DIGITS_FIRST:
        first = [pre_tokenizers.Digits(individual_digits=True)]
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in _SPLITS)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, words])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(own: Mapping[str, Any], kinds: Mapping[int, int]) -> Tokenizer:
    """Pairs of characters, spaces among them, merged in the order of their scores."""
    tokens = own["tokens"]
    ids = {token: n for n, token in enumerate(tokens)}
    # Tokens of these types are found in the text itself and are never merged.
    text = {token: n for token, n in ids.items() if kinds.get(n) not in _NOT_MERGED}
    merges = (
        [tuple(merge.split(" ")) for merge in own["merges"]]
        if "merges" in own
        else _merges(text, own["scores"])
    )
    backend = Tokenizer(models.BPE(ids, merges, fuse_unk=True, byte_fallback=True))
    spaced = own.get("add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        _SPACE, prepend_scheme="first" if spaced else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1)] if spaced else steps)
    return backend


def _merges(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs of tokens that make up another, the likeliest first."""

    def score(token: str) -> float:
        return -scores[ids[token]]

    pairs = []
    for _, tokens in groupby(sorted(ids, key=score), key=score):
        found = [
            (left, right)
            for token in tokens
            for at in range(len(token) - 1, 0, -1)
            if (left := token[:at]) in ids and (right := token[at:]) in ids
        ]
        pairs += sorted(found, key=lambda pair: (-len(pair[0]), -len(pair[1])))
    return pairs


def _enclose(backend: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Let texts begin and end with tokens, if they are given."""
    single = " ".join([*filter(None, [bos]), "$A", *filter(None, [eos])])
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        special_tokens=[(text, backend.token_to_id(text)) for text in (bos, eos) if text],
    )


def _check_ids(header: GgufHeader) -> None:
    """Refuse ids of special tokens that are not in the vocabulary, such as 4294967295, which means none.

    Raises:
        CheckpointError: naming the key.
    """
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    for key, value in header.metadata.items():
        special = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if not special or not isinstance(tokens, list):
            continue
        if type(value) is not int or not 0 <= value < len(tokens):
            raise CheckpointError(
                f"{header.path}: {key} is {shown(value)}, and its vocabulary has {len(tokens)} tokens; "
                "remove the key (4294967295 stands for no token), or take another file."
            )


def tokenizer_notes(header: GgufHeader) -> tuple[str, ...]:
    """Notes for the user on how a text is split, one sentence each."""
    name = header.metadata.get("tokenizer.ggml.pre", "default")
    known = (*_DIGITS_FIRST, *_AS_GPT2, *_SPLITS)
    if header.metadata.get("tokenizer.ggml.model") != "gpt2" or name in known:
        return ()
    return (
        f"How its tokenizer splits words ({name}) is not known: it splits them as GPT-2 does, and some "
        "tokens may differ from those of training.",
    )
