"""The tokenizer in a GGUF file splits text as the model learnt it."""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import forerun
from forerun.engine.chat import ChatTemplate
from forerun.errors import CheckpointError
from forerun.models import Checkpoint
from forerun.models.gguf.header import GgufHeader
from forerun.models.gguf.tokenizer import GgufTokenizer, read_gguf_tokenizer
from forerun.models.zoo import packaged_path
from tests.helpers.gguf_files import write_model
from tests.helpers.real_model import needs_gemma3, needs_smollm2

LETTERS = {"cjk": [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x20, 0x7F)]}
LETTERS["emoji"] = [(0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x2600, 0x27BF), (0x200D, 0x200E)]
LETTERS["emoji"] += [(0xFE0F, 0xFE10), (0x1F3FB, 0x1F3FF), (0x20, 0x7F)]


def invented(kind: str, count: int) -> Iterator[str]:
    dice = random.Random(kind)
    for _ in range(count):
        ranges = [dice.choice(LETTERS[kind]) for _ in range(dice.randint(2, 40))]
        yield "".join(chr(dice.randrange(*letters)) for letters in ranges)


def lines() -> list[str]:
    """10,000 of code, prose, emoji and CJK."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = (file.read_text("utf-8") for file in sorted(library.glob("*.py"))[:60])
    code = [line for source in sources for line in source.splitlines() if line.strip()]
    prose = [line for line in code if re.search(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", line)]
    return [*code[:6000], *prose[:1000], *invented("cjk", 1500), *invented("emoji", 1500)]


@needs_smollm2
def test_a_real_one_reads_as_transformers_does_but_for_digits_after_spaces() -> None:
    """That transformers leaves out a rule of this family is the only difference."""
    opened = Checkpoint.open("smollm2")
    path = opened.location.file
    assert path is not None
    theirs = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    everything = lines()
    assert len(everything) == 10_000
    different = 0
    for line in everything:
        ids = opened.tokenizer.encode(line)
        assert opened.tokenizer.decode(ids) == line
        if ids != theirs.encode(line):
            assert re.search(r"\s{2,}\d", line), line
            different += 1
    assert different > 0
    # As llama.cpp does.
    assert opened.tokenizer.encode("  2 and   512: ") == [256, 34, 284, 333, 37, 33, 34, 42, 216]


@pytest.mark.parametrize("way", ["gpt-2", "llama-bpe", "tekken", "qwen2"])
def test_words_are_split_as_transformers_does(way: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    pairs = [
        *("\u0120 t", "h e", "i n", "\u0120t he", "1 2", "12 3", "\u0120 1", "\u00ec \u013f"),
        "' s",
    ]
    pairs += ["\u010a \u010a", "\u0120 \u0120", "a r", "= =", "\u0120 ="]
    write_model(path, num_hidden_layers=1)
    tokens: list[str] = list(Checkpoint.open(path).header.metadata["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]
    tokens[-len(pairs) :] = [pair.replace(" ", "") for pair in pairs]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": pairs}
    write_model(path, num_hidden_layers=1, metadata={**changed, "tokenizer.ggml.pre": way})
    compare(path, opens=way in ("llama-bpe", "tekken"))


def compare(path: Path, opens: bool) -> None:
    """Compare the tokenizer of a file with the one that transformers makes of it."""
    tokenizer = Checkpoint.open(path).tokenizer
    theirs = PreTrainedTokenizerFast(name_or_path=str(path.parent), gguf_file=path.name)
    first = [tokenizer.bos_token_id] if opens else []
    for line in lines()[::100]:
        ids = tokenizer.encode(line, add_special_tokens=False)
        assert ids == theirs.encode(line, add_special_tokens=False)
        assert tokenizer.decode(ids) == theirs.decode(ids)
        # Called as those of transformers are, it is one of them.
        assert tokenizer.encode(line) == first + ids == tokenizer(line)["input_ids"]


def test_tokens_beside_the_text_are_whole_however_they_are_written(tmp_path: Path) -> None:
    """As in the models of DeepSeek; transformers cuts them into bytes."""
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1)
    header = Checkpoint.open(path).header  # type: ignore[attr-defined]
    tokens: list[str] = list(header.metadata["tokenizer.ggml.tokens"])
    kinds: list[int] = list(header.metadata["tokenizer.ggml.token_type"])
    tokens[-2:], kinds[-2:] = ["<\uff5cUser\uff5c>", "<my tool>"], [3, 4]
    merges = {"tokenizer.ggml.merges": ["a b"]}
    tokens[-3] = "ab"
    changed = {**merges, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    write_model(path, num_hidden_layers=1, metadata=changed)
    tokenizer = Checkpoint.open(path).tokenizer
    ids = tokenizer.encode("a<\uff5cUser\uff5c><my tool>b")
    assert ids[1:-1] == [len(tokens) - 2, len(tokens) - 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<my tool>b"


def test_special_tokens_may_be_typed_as_text(tmp_path: Path) -> None:
    """As llama.cpp takes them; cut into bytes, the end of a text would be a new token."""
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1)
    header = Checkpoint.open(path).header  # type: ignore[attr-defined]
    tokens: list[str] = list(header.metadata["tokenizer.ggml.tokens"])
    tokens[-3:] = ["<\uff5cend\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|im_end|>"]
    tokens[-4] = "ab"
    changed: dict[str, Any] = {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.tokens": tokens}
    changed["tokenizer.ggml.eos_token_id"] = len(tokens) - 3
    write_model(path, num_hidden_layers=1, metadata=changed)
    opened = Checkpoint.open(path)
    tokenizer, ends = opened.tokenizer, range(len(tokens) - 3, len(tokens))
    assert len(tokenizer) == len(set(tokens))
    assert tokenizer.eos_token_id == len(tokens) - 3
    assert opened.eos_token_ids == {1, *ends}
    ids = tokenizer.encode("a" + "".join(tokens[-3:]))
    assert ids[1:] == list(ends)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"


def test_it_is_called_as_those_of_transformers_are(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.add_bos_token": True})
    tokenizer = Checkpoint.open(path).tokenizer
    theirs = tokenizer.transformers
    ids = tokenizer.encode("abc")
    for options in (
        {"return_tensors": "pt"},
        {"truncation": True, "max_length": 2},
        {"text_pair": "b"},
    ):
        expected = theirs.encode("abc", **options)
        ours = tokenizer.encode("abc", **options)
        assert type(ours) is type(expected)
        assert np.array_equal(ours, expected)
    assert tokenizer.encode("abc", None, False) == theirs.encode("abc", None, False) == ids[1:]
    assert tokenizer.encode(["a", "b"]) == theirs.encode(["a", "b"])
    for given in (
        ids,
        tuple(ids),
        ids[1],
        [ids, ids],
        np.array(ids),
        torch.tensor(ids),
        torch.tensor([ids]),
        [],
    ):
        assert tokenizer.decode(given) == theirs.decode(given)
        skipped = tokenizer.decode(given, skip_special_tokens=True)
        assert skipped == theirs.decode(given, skip_special_tokens=True)


def tokens_of(path: Path, text: str) -> list[str]:
    tokenizer = Checkpoint.open(path).tokenizer
    found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer.encode(text))
    return found


SPACES = {"tokenizer.ggml.merges": ["\u0120 \u0120"]}


@pytest.mark.parametrize(
    ("way", "expected"),
    [("gpt-2", ["\u0120", "\u0120", "2"]), ("smollm", ["\u0120\u0120", "2"])],
)
def test_digits_may_be_split_off_first(way: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1)
    tokens: list[str] = list(Checkpoint.open(path).header.metadata["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]
    tokens[-1] = "\u0120\u0120"
    changed: dict[str, Any] = {**SPACES, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": way}
    write_model(path, num_hidden_layers=1, metadata=changed)
    assert tokens_of(path, "  2") == expected


def test_nothing_beside_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.chat_template": "its own"})
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")),
        chat_template="another",
    )
    other.save_pretrained(tmp_path)
    tokenizer = Checkpoint.open(path).tokenizer
    assert len(tokenizer) > 250
    assert tokenizer.chat_template == "its own"


@pytest.mark.parametrize(
    ("way", "said", "expected"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
        ("qwen2", None, False),
        ("qwen2", True, True),
    ],
)
def test_a_text_begins_with_bos(
    way: str, said: bool | None, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    more = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.pre": way, **more})
    assert (Checkpoint.open(path).tokenizer.encode("a")[0] == 0) == expected


@pytest.mark.parametrize(("said", "opened"), [(True, True), (False, False)])
@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ bos_token }}a"])
def test_a_conversation_begins_as_a_text_does(
    said: bool, opened: bool, template: str, tmp_path: Path
) -> None:
    """With BOS once, whether or not the template writes it, as with llama.cpp."""
    path = tmp_path / "model.gguf"
    more = {"tokenizer.ggml.add_bos_token": said, "tokenizer.chat_template": template}
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.pre": "qwen2", **more})
    tokenizer = Checkpoint.open(path).tokenizer
    made = ChatTemplate.of(tokenizer)
    assert made is not None
    ids = made.encode([{"role": "user", "content": "a"}])
    assert (ids[0] == 0) == (opened or "bos" in template)
    assert ids.count(0) <= 1
    # Of other files the template alone says how a conversation begins.
    tokenizer.opens_conversations = False
    assert (made.encode([{"role": "user", "content": "a"}])[0] == 0) == ("bos" in template)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ bos_token }}a"])
def test_an_engine_opens_texts_and_conversations_once(
    said: bool, template: str, tmp_path: Path
) -> None:
    """The second turn of a conversation goes on where the first ended, which opens nothing."""
    path = tmp_path / "model.gguf"
    more = {"tokenizer.ggml.add_bos_token": said, "tokenizer.chat_template": template}
    write_model(path, num_hidden_layers=1, metadata=more)
    engine = forerun.load(path, False, device="cpu", max_context=64)
    limits: dict[str, Any] = {"temperature": 0, "max_tokens": 2}
    text, opened = engine.generate("a", **limits), engine.generate("<s>a", **limits)
    assert text.prompt_ids.count(0) == said
    assert opened.prompt_ids[0] == 0
    assert opened.prompt_ids.count(0) == 1
    message = {"role": "user", "content": "a"}
    answer = {"role": "assistant", "content": "b"}
    for messages in ([message], [message, answer, message]):
        ids = engine.chat(messages, **limits).prompt_ids
        assert ids.count(0) == (said or "bos" in template)


@pytest.mark.parametrize(("way", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_words_that_are_tokens_may_need_no_merges(way: str, whole: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1)
    tokens: list[str] = list(Checkpoint.open(path).header.metadata["tokenizer.ggml.tokens"])  # type: ignore[attr-defined]
    tokens[-1] = "zxq"
    changed = {**SPACES, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": way}
    tokens[-2] = "\u0120\u0120"
    write_model(path, num_hidden_layers=1, metadata=changed)
    assert (tokens_of(path, "zxq")[-1] == "zxq") == whole


@pytest.mark.parametrize(("said", "first"), [(None, "\u2581Hi"), (True, "\u2581Hi"), (False, "Hi")])
def test_a_space_before_the_first_word(said: bool | None, first: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "H", "i", "\u2581H", "\u2581Hi", "Hi"]
    count = len(tokens)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(count - 259)],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (count - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    if said is not None:
        metadata["tokenizer.ggml.add_space_prefix"] = said
    left_out = ("tokenizer.ggml.merges", "tokenizer.ggml.pre")
    write_model(path, num_hidden_layers=1, metadata=metadata, without=left_out)
    assert tokens_of(path, "Hi Hi") == ["<s>", first, "\u2581Hi"]
    tokenizer = Checkpoint.open(path).tokenizer
    ids = tokenizer.encode("Hi Hi \u00e9")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hi Hi \u00e9"
    if said is not False:
        # Of files that want no space, transformers adds one all the same.
        compare(path, opens=True)


def test_a_file_of_pairs_of_characters_has_the_special_tokens_of_llama(tmp_path: Path) -> None:
    """What such a file leaves out is what llama.cpp takes it for."""
    path = tmp_path / "model.gguf"
    tokens = ["<a>", "<b>", "<c>", *(f"<0x{byte:02X}>" for byte in range(256)), "x", "y"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [1, 1, 1, *[6] * 256, 1, 1],
    }
    left_out = ("merges", "pre", "bos_token_id", "eos_token_id")
    keys = tuple(f"tokenizer.ggml.{key}" for key in left_out)
    write_model(path, num_hidden_layers=1, metadata=metadata, without=keys)
    opened = Checkpoint.open(path)
    assert (opened.tokenizer.bos_token, opened.tokenizer.unk_token) == ("<b>", "<a>")
    assert opened.eos_token_ids == {2}
    assert opened.tokenizer.encode("xy")[0] == 1


# As llama.cpp reads them.
GEMMA = {
    "  a   b\n\n\nc <start_of_turn>user\nhi<end_of_turn>\n": [
        *(138, 236746, 139, 236763, 109, 236755, 236743, 105, 2364, 107, 2202, 106, 107)
    ],
    "<b>bold</b><br>\t\t\tx": [200, 15640, 209, 236820, 1457, 236813, 255970, 236781],
    "<0x0A>x": [236820, 236771, 236781, 236771, 236776, 236813, 236781],
    "\u65e5\u672c\u8a9e \u00e9\u00e8 \U0001f642\u200d\u2194\ufe0f": [
        *(94951, 1559, 237022, 57235, 237243, 244034, 238178)
    ],
    " " * 40 + "x" + "\n" * 40: [167, 145, 236781, 137, 115],
    "<unused3>[multimodal]": [9, 5],
}


def gemma() -> GgufTokenizer:
    return read_gguf_tokenizer(GgufHeader.read(packaged_path("gemma3")))


@needs_gemma3
def test_gemma_has_spaces_and_tags_of_its_own() -> None:
    tokenizer = gemma()
    for text, ids in GEMMA.items():
        assert tokenizer.encode(text) == [2, *ids]
        assert tokenizer.decode(ids) == text
    for line in lines()[::50]:
        assert tokenizer.decode(tokenizer.encode(line)) == f"<bos>{line}"


@needs_gemma3
@pytest.mark.slow
def test_gemma_reads_as_transformers_does_but_for_long_runs_of_spaces() -> None:
    """llama.cpp takes the longest run that is a token first, as here; transformers merges runs."""
    path, ours = packaged_path("gemma3"), gemma()
    theirs = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    for line in lines():
        ids = ours.encode(line, add_special_tokens=False)
        assert " " * 32 in line or ids == theirs.encode(line, add_special_tokens=False)


def test_an_unknown_way_of_splitting_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for way, told in (("smollm", False), ("llama-bpe", False), ("frobnicate", True)):
        write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.pre": way})
        notes = Checkpoint.open(path).notes
        assert bool(notes) == told
        assert all("(frobnicate) is not known" in note for note in notes)


def test_a_file_without_one(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1, metadata={"tokenizer.ggml.model": "no_vocab"})
    with pytest.raises(
        CheckpointError, match=r"has no tokenizer that can be read .*known are gpt2, llama"
    ):
        _ = Checkpoint.open(path).tokenizer


@pytest.mark.parametrize("key", ["bos_token_id", "padding_token_id"])
@pytest.mark.parametrize("value", [2**32 - 1, np.int32(-1), True])
def test_an_id_outside_the_vocabulary_is_named(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, num_hidden_layers=1, metadata={f"tokenizer.ggml.{key}": value})
    with pytest.raises(CheckpointError, match=f"{key} is {value}, and its vocabulary has 300"):
        _ = Checkpoint.open(path).tokenizer
