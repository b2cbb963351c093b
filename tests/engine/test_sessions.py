"""A session goes on where the text was read, bit for bit, and what does not fit changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import forerun
from forerun.compression import Compression
from forerun.contracts import CausalLM, Drafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.eagle3 import Eagle3Drafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.engine.sessions import read_session
from forerun.errors import ConfigError, SessionError, UnsupportedModelError
from forerun.heads.eagle3 import Eagle3Config, Eagle3Head
from forerun.kv_cache.session_file import FORMAT
from forerun.models.checkpoint import model_from_tensors
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from tests.helpers import kernel_models
from tests.helpers.eagle_heads import Made, published
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.tiny_models import tiny_config, tiny_model, tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SEEDED = SamplingParams(temperature=0.9, seed=5, max_tokens=12)
TEXT: list[int] = [*tokens(1, 30)[0].tolist(), 7, 7]
# So that looking up finds something.
QUESTION = TEXT[3:7]


@cache
def on_torch(family: str = "llama", dtype: str = "fp32", scale: float = 1.0) -> CausalLM:
    weights = {name: scale * weight for name, weight in tiny_model(family).state_dict().items()}
    return model_from_tensors(
        tiny_config(family), weights, dtype=dtype, backend="torch", name=family
    )


@cache
def on_kernels(precision: str) -> CausalLM:
    """More tokens than a tile holds are read."""
    return kernel_models.model("llama", precision)


def long_text(model: CausalLM) -> list[int]:
    """One that ends inside a tile, or where the context lets it."""
    return (TEXT * 5)[: min(150, model.max_context - 20)]


BACKENDS: dict[str, Callable[[], CausalLM]] = {
    "torch-fp32": on_torch,
    "torch-bf16": lambda: on_torch(dtype="bf16"),
    "torch-sliding": lambda: on_torch("mistral"),
    "torch-positions": lambda: on_torch("gpt2"),
    **{f"kernels-{name}": lambda name=name: on_kernels(name) for name in kernel_models.PRECISIONS},  # type: ignore[misc]
}


def backends(*names: str) -> pytest.MarkDecorator:
    """Cases of models, those of the kernels where there are any."""
    chosen = {name: BACKENDS[name] for name in names or BACKENDS}
    return pytest.mark.parametrize(
        "model_of",
        [
            pytest.param(make, id=name, marks=needs_kernels if name.startswith("kernels") else ())
            for name, make in chosen.items()
        ],
    )


def engine_of(model: CausalLM, drafter: Drafter | None = None, **options: Any) -> forerun.Engine:
    config = None
    if drafter is not None:
        config = forerun.SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
    return forerun.Engine(model, drafter, config, **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text.session"


def saved(model: CausalLM, file: Path) -> list[int]:
    """Save a text that was read; its token ids."""
    text = long_text(model)
    engine = engine_of(model)
    engine.generate(text, max_tokens=1, temperature=0)
    assert engine.sessions.save(file).token_ids == tuple(text)
    return text


@backends()
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_session_goes_on_as_the_engine_that_read_the_text(
    model_of: Callable[[], CausalLM], params: SamplingParams, file: Path
) -> None:
    model = model_of()
    text = long_text(model)
    reader = engine_of(model)
    reader.generate(text, max_tokens=1, temperature=0)
    session = reader.sessions.save(file)
    wanted = reader.generate(text + QUESTION, params)
    engine = engine_of(model)
    assert engine.sessions.load(file) == session == read_session(file)
    found = engine.generate(text + QUESTION, params)
    assert found.token_ids == wanted.token_ids
    # Only the rest was run.
    assert found.stats.num_cached_tokens == wanted.stats.num_cached_tokens == len(text)
    assert session.nbytes == file.stat().st_size


@backends("torch-fp32", "kernels-bf16")
def test_keys_and_values_are_those_that_were_saved(
    model_of: Callable[[], CausalLM], file: Path
) -> None:
    """In any row, of a cache of another size, over what it held before."""
    model = model_of()
    text = saved(model, file)
    wide = engine_of(model, max_batch_size=3)
    wide.generate([[9, 9, 9, 9], TEXT[::-1], [4, 4]], max_tokens=3)
    wide.sessions.load(file)
    row, held = wide._scheduler.last_text()
    assert held == text
    wanted = load_file(file)
    for layer in range(model.num_layers):
        found = wide.sessions._rows.read_row(row, layer, len(text))
        assert all(torch.equal(found[name], wanted[f"layers.{layer}.{name}"]) for name in found)


def head_drafter(model: CausalLM) -> Drafter:
    made = Made(ids=(0, 1, 2))
    config, tensors = published(made, "vllm")
    head = Eagle3Head(model, Eagle3Config.read(config, "head"), tensors, "head")
    return Eagle3Drafter(head, model.vocab_size, 1, model.max_context)


DRAFTERS: dict[str, Callable[[CausalLM], Drafter]] = {
    "ngram": lambda _: NgramDrafter(),
    "suffix": lambda _: SuffixDrafter(),
    "draft_model": lambda model: DraftModelDrafter(
        on_torch(scale=0.9), 1, on_torch(scale=0.9).max_context
    ),
    "eagle3": head_drafter,
    "layer_skip": lambda model: LayerSkipDrafter(model, 1),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_drafters_draft_after_a_load_and_the_output_is_the_plain_one(
    name: str, params: SamplingParams, file: Path
) -> None:
    """Also where the drafter holds something of another text in that row."""
    model = on_torch(dtype="fp64")
    text = saved(model, file)
    wanted = engine_of(model).generate(text + QUESTION, params)
    engine = engine_of(model, DRAFTERS[name](model))
    engine.generate(TEXT[::-1], params)
    engine.sessions.load(file)
    found = engine.generate(text + QUESTION, params)
    assert found.token_ids == wanted.token_ids
    assert found.stats.num_cached_tokens == len(text)
    assert found.stats.num_drafts > 0


def test_a_session_is_the_last_request_with_its_answer(file: Path) -> None:
    engine = engine_of(on_torch(), max_batch_size=2)
    engine.generate([1, 2, 3, 4], GREEDY)
    last = engine.generate([9, 8, 7], GREEDY)
    # The newest token has not been run.
    whole = (*last.prompt_ids, *last.token_ids)[:-1]
    assert engine.sessions.save(file).token_ids == whole
    # What was loaded is the last one then.
    other = file.with_name("other")
    engine.generate([1, 2, 3], GREEDY)
    engine.sessions.load(file)
    assert engine.sessions.save(other).token_ids == whole


def test_a_session_loaded_can_be_saved_again(file: Path, tmp_path: Path) -> None:
    saved(on_torch(), file)
    engine = engine_of(on_torch())
    engine.sessions.load(file)
    again = tmp_path / "again"
    engine.sessions.save(again, notes=read_session(file).notes)
    assert again.read_bytes() == file.read_bytes()


def test_the_file_is_one_that_safetensors_reads(file: Path) -> None:
    saved(on_torch(), file)
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata()["format"] == FORMAT
        assert opened.metadata()["cache_layers"] == "3"
    assert load_file(file)["layers.2.values"].shape[1] == len(long_text(on_torch()))


def test_notes_come_back(file: Path) -> None:
    engine = engine_of(on_torch())
    engine.generate(TEXT, GREEDY)
    notes = {"what": "a text – “quoted”"}
    engine.sessions.save(file, notes=notes)
    assert engine.sessions.load(file).notes == notes
    with pytest.raises(ConfigError, match="notes"):
        engine.sessions.save(file, notes={"a": 1})  # type: ignore[dict-item]


REFUSALS: dict[str, tuple[Callable[[], CausalLM], str]] = {
    "precision": (
        lambda: on_torch(dtype="bf16"),
        r"precision is fp32 there and bf16 here; cache_dtype is float32 there and bfloat16",
    ),
    "shape": (lambda: on_torch("qwen3"), r"cache_head_dim is 6 there and 16 here"),
    "weights": (
        lambda: on_torch(scale=1.01),
        r"other weights \(llama\): after its first 16 tokens logits differ by up to [\d.]+, and",
    ),
}


def state_of(engine: forerun.Engine) -> Any:
    scheduler = engine._scheduler
    keys = [tensor.clone() for tensor in engine._parts.cache.keys]  # type: ignore[attr-defined]
    return [list(held) for held in scheduler._held], list(scheduler._least_recent), keys


def check_refused(engine: forerun.Engine, file: Path, message: str) -> None:
    """Loading is refused, and what the engine held is as it was."""
    engine.generate([8, 6, 4], GREEDY)
    before = state_of(engine)
    with pytest.raises(SessionError, match=message) as refusal:
        engine.sessions.load(file)
    assert "\n" not in str(refusal.value)
    after = state_of(engine)
    assert before[:2] == after[:2]
    assert all(torch.equal(*pair) for pair in zip(before[2], after[2], strict=True))


@pytest.mark.parametrize("case", REFUSALS)
def test_a_session_of_another_model_is_refused_with_what_differs(case: str, file: Path) -> None:
    saved(on_torch(), file)
    make, message = REFUSALS[case]
    check_refused(engine_of(make()), file, message)


@needs_kernels
def test_a_session_of_another_backend_or_kernel_precision_is_refused(file: Path) -> None:
    saved(on_kernels("int8"), file)
    message = (
        r"precision is int8 there and fp32 here.*cache_layout is tiles of the kernels, 2 there"
    )
    check_refused(engine_of(on_torch()), file, message)
    with pytest.raises(SessionError, match="precision is int8 there and int4 here"):
        engine_of(on_kernels("int4")).sessions.load(file)
    other = kernel_models.model("llama", "int8", seed=1)
    with pytest.raises(SessionError, match=r"other weights .* and 0 is allowed"):
        engine_of(other).sessions.load(file)


def test_a_session_beyond_the_context_is_refused_with_both_numbers(file: Path) -> None:
    count = len(saved(on_torch(), file))
    message = rf"holds {count} tokens and the context is 20.*raise max_context to {count + 1}"
    check_refused(engine_of(on_torch(), max_context=20), file, message)
    engine_of(on_torch(), max_context=count + 1).sessions.load(file)


def test_a_file_cut_off_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    saved(on_torch(), file)
    content, cut = file.read_bytes(), tmp_path / "cut"
    engine = engine_of(on_torch())
    for length in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        check_refused(
            engine, cut, "cut off or not a session|is a safetensors file but not a session"
        )


def test_a_changed_byte_is_refused(file: Path) -> None:
    saved(on_torch(), file)
    content = bytearray(file.read_bytes())
    content[-2000] ^= 1
    file.write_bytes(content)
    check_refused(engine_of(on_torch()), file, r"damaged: the sum of layers\.\d\.\w+ is another")


def rewritten(file: Path, change: Callable[[dict[str, Any], dict[str, str]], object]) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = dict(opened.metadata())
        tensors = {key: opened.get_tensor(key).clone() for key in opened.keys()}  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, file, metadata)


CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, str]], object], str]] = {
    "no session": (lambda _, data: data.clear(), "is a safetensors file but not a session"),
    "version": (lambda _, data: data.update(version="2"), "has version '2' .* reads 1"),
    "no ids": (lambda tensors, _: tensors.pop("token_ids"), "it has no token_ids"),
    "ids": (
        lambda tensors, _: tensors.update(token_ids=torch.zeros(2, 2)),
        r"its token ids are torch.float32 \[2, 2\]",
    ),
    "no tokens": (
        lambda tensors, _: tensors.update(token_ids=torch.zeros(0, dtype=torch.int64)),
        r"its token ids are torch.int64 \[0\]",
    ),
    "probe": (lambda tensors, _: tensors.update(probe=torch.ones(2, 2)), "its probe is"),
    "a layer": (
        lambda tensors, _: tensors.pop("layers.1.keys"),
        "it holds 8 tensors instead of 9",
    ),
    "shape": (
        lambda tensors, _: tensors.update({"layers.1.keys": torch.ones(2, 3)}),
        r"layers\.1\.keys is F32 \[2, 3\] instead of F32 \[2, \d+, 6\]",
    ),
    "dtype": (
        lambda tensors, _: tensors.update({"layers.1.keys": tensors["layers.1.keys"].double()}),
        r"layers\.1\.keys is F64",
    ),
    "facts": (lambda _, data: data.pop("vocab_size"), "vocab_size is unknown there and 61 here"),
    "notes": (lambda _, data: data.update(notes="[1"), "cut off or not a session"),
    "notes of lists": (lambda _, data: data.update(notes="[]"), "its notes are not an object"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_with_other_contents_is_refused(case: str, file: Path) -> None:
    saved(on_torch(), file)
    change, message = CHANGES[case]
    rewritten(file, change)
    check_refused(engine_of(on_torch()), file, message)


def test_token_ids_outside_the_vocabulary_are_refused(file: Path) -> None:
    import zlib

    def change(tensors: dict[str, Any], _: dict[str, str]) -> None:
        tensors["token_ids"][3] = 61
        tensors["checksums"][0] = zlib.crc32(tensors["token_ids"].numpy().tobytes())

    saved(on_torch(), file)
    rewritten(file, change)
    check_refused(engine_of(on_torch()), file, "token ids outside the vocabulary")


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    check_refused(engine_of(on_torch()), tmp_path / name, "is not a file")


def test_what_cannot_have_a_session_says_why(file: Path) -> None:
    compression = Compression(kv_method="streaming_llm", kv_budget=16, kv_recent=8)
    compressed = engine_of(on_torch(), compression=compression)
    apart = engine_of(on_torch(), prefix_reuse=False)
    for engine, kind, message in (
        (compressed, ConfigError, "a cache that evicts cannot be saved"),
        (apart, ConfigError, "sessions need prefix_reuse"),
        (engine_of(ToyModel(11)), UnsupportedModelError, "cannot be saved as a session"),
    ):
        engine.generate([1, 2, 3], GREEDY)
        for call in (engine.sessions.save, engine.sessions.load):
            with pytest.raises(kind, match=message):
                call(file)
    assert not file.exists()


def test_nothing_to_save_is_said(file: Path) -> None:
    engine = engine_of(on_torch())
    with pytest.raises(ConfigError, match="no request has ended"):
        engine.sessions.save(file)
    list(engine.stream_plain([1, 2, 3], GREEDY))
    assert not file.exists()


def test_a_row_that_is_taken_is_neither_saved_nor_filled(file: Path) -> None:
    saved(on_torch(), file)
    engine = engine_of(on_torch())
    engine.add([1, 2, 3], GREEDY)
    engine.step()
    with pytest.raises(ConfigError, match="all rows are taken"):
        engine.sessions.load(file)
    with pytest.raises(ConfigError, match="no request has ended"):
        engine.sessions.save(file)
    while engine.has_work:
        engine.step()
    engine.sessions.load(file)


def test_a_folder_that_is_not_there_or_a_full_disk_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(on_torch(), file)
    before = file.read_bytes()
    engine = engine_of(on_torch())
    engine.generate([1, 2, 3], GREEDY)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forerun.kv_cache.session_file._bytes", full)
    with pytest.raises(SessionError, match="cannot be written: no space left"):
        engine.sessions.save(file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_failure_while_the_row_is_filled_leaves_a_row_without_tokens(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = saved(on_torch(), file)
    engine = engine_of(on_torch())
    cache = engine._parts.cache
    write = type(cache).write_row  # type: ignore[attr-defined]

    def failing(self: Any, row: int, layer: int, *rest: Any) -> None:
        if layer == 1:
            raise KeyboardInterrupt
        write(self, row, layer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(type(cache), "write_row", failing)
        with pytest.raises(KeyboardInterrupt):
            engine.sessions.load(file)
    wanted = engine_of(on_torch()).generate(text + QUESTION, GREEDY)
    found = engine.generate(text + QUESTION, GREEDY)
    assert (found.token_ids, found.stats.num_cached_tokens) == (wanted.token_ids, 0)


def test_no_more_than_a_layer_is_held_beside_the_cache(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing asks for one layer after another and has written each before the next."""
    engine = engine_of(on_torch())
    engine.generate(TEXT, GREEDY)
    cache, events = engine._parts.cache, list[str]()
    read = type(cache).read_row  # type: ignore[attr-defined]

    def noted(self: Any, row: int, layer: int, length: int) -> Any:
        events.append(f"read {layer}")
        return read(self, row, layer, length)

    import forerun.kv_cache.session_file as files

    to_bytes = files._bytes
    monkeypatch.setattr(type(cache), "read_row", noted)

    def written(tensor: Any) -> Any:
        events.append("write")
        return to_bytes(tensor)

    monkeypatch.setattr(files, "_bytes", written)
    engine.sessions.save(file)
    per_layer = [event for layer in range(3) for event in (f"read {layer}", "write", "write")]
    assert events == ["write", "write", *per_layer, "write"]


def test_metadata_is_json_where_it_is_nested(file: Path) -> None:
    engine = engine_of(on_torch())
    engine.generate(TEXT, replace(GREEDY, max_tokens=2))
    engine.sessions.save(file, notes={"a": "b"})
    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["notes"]) == {"a": "b"}
