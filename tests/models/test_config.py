"""Whatever a config.json holds, it describes a model or is refused in one line, and at once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import CheckpointError, ForerunError, UnsupportedModelError
from forerun.models import Checkpoint, load_model
from tests.helpers.backends import BACKENDS
from tests.helpers.covering import covering
from tests.helpers.examples import examples

FAMILIES = ["llama", "qwen2-sliding", "gpt2", "gpt_neox", "gemma2"]
# What gpt2 calls by other names.
GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4}
# A key, a value, and what the refusal must say; a key that gpt2 lacks is not read there.
WRONG: list[tuple[str, Any, str]] = [
    *[("hidden_size", value, "hidden_size") for value in ("24", 0, -1, 24.0, True, [24], 2**40)],
    *[("num_hidden_layers", value, "num_hidden_layers") for value in (0, -1, 10**12, "3", None)],
    *[("num_attention_heads", value, "num_attention_heads") for value in (0, -4, 10**12, None)],
    *[("max_position_embeddings", value, "max_position") for value in (0, 10**12, "64")],
    *[("vocab_size", value, "vocab_size") for value in (0, -1, 10**12, "61", None)],
    *[("intermediate_size", value, "intermediate_size") for value in (-4, 0, 10**12)],
    *[("rms_norm_eps", value, "eps") for value in ("x", float("nan"), -1.0, float("inf"))],
    ("hidden_act", "frob", "unknown"),
    ("hidden_act", "silo", "Did you mean 'silu'"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings"),
    ("dtype", "frob", "frob"),
]
ROTARY: list[tuple[str, Any, str]] = [
    ("num_key_value_heads", 0, "num_key_value_heads"),
    ("head_dim", 0, "head_dim"),
    ("rope_parameters", "x", "rope_parameters"),
    ("rope_parameters", {"rope_type": "frob", "rope_theta": 1e4}, "unknown rope_type 'frob'"),
    ("rope_parameters", {"rope_type": "yarm", "rope_theta": 1e4}, "Did you mean 'yarn'"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": -5}, "rope_theta"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": "x"}, "rope_theta"),
    ("rope_parameters", YARN | {"factor": "x"}, "factor"),
    ("rope_parameters", YARN | {"factor": 0.0}, "factor"),
    ("rope_parameters", YARN, "factor"),
]


def rewrite(directory: Path, changes: dict[str, Any]) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(directory: Path, words: str) -> None:
    """Both of what reads a config say the same, on one line."""
    said = set()
    for use in (lambda: Checkpoint.open(directory).summary, lambda: load_model(directory)):
        with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
            use()
        said.add(str(caught.value))
    assert len(said) == 1
    text = said.pop()
    assert words in text
    assert "\n" not in text
    assert "config.json" in text


@pytest.mark.parametrize(
    ("family", "wrong"), covering(FAMILIES, WRONG), ids=lambda value: str(value)[:40]
)
def test_values_that_no_model_has(family: str, wrong: tuple[str, Any, str], copy: Any) -> None:
    directory, (key, value, words) = copy(family), wrong
    if family == "gpt2":
        words = words.replace(key, GPT2.get(key, key))
        words = "n_positions" if words == "max_position" else words
        key = GPT2.get(key, key)
    elif family == "gpt_neox":
        key = {"rms_norm_eps": "layer_norm_eps"}.get(key, key)
    elif family == "gemma2":
        key = {"hidden_act": "hidden_activation"}.get(key, key)
        words = words.replace("hidden_act'", "hidden_activation'")
    rewrite(directory, {key: value})
    refused(directory, words)


@pytest.mark.parametrize(
    ("family", "wrong"),
    covering(["llama", "qwen2-sliding", "gemma2"], ROTARY),
    ids=lambda value: str(value)[:40],
)
def test_rotations_that_no_model_has(family: str, wrong: tuple[str, Any, str], copy: Any) -> None:
    directory, (key, value, words) = copy(family), wrong
    rewrite(directory, {key: value})
    refused(directory, words)


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "3", 10**12])
@pytest.mark.parametrize("family", ["mistral", "qwen2-sliding", "gemma2"])
def test_windows_that_hold_no_token(window: Any, family: str, copy: Any) -> None:
    """The kernels took 0 for no window, torch for one that sees nothing."""
    directory = copy(family)
    rewrite(directory, {"sliding_window": window})
    refused(directory, "sliding_window")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_window_that_no_layer_has_may_be_anything(family: str, backend: str, copy: Any) -> None:
    directory = copy(family)
    rewrite(directory, {"sliding_window": 0, "use_sliding_window": False})
    assert load_model(directory, device="cpu", backend=backend).num_layers == 3


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ("qwen2", {"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ("llama", {"head_dim": 5}, "head_dim"),
        ("gpt2", {"n_head": 5}, "n_embd is 24; it must be a multiple of n_head, 5"),
        ("gpt2", {"layer_norm_epsilon": "x"}, "layer_norm_epsilon"),
        ("gpt2", {"n_layer": None}, "n_layer"),
    ],
)
def test_numbers_that_contradict_each_other(
    family: str, changes: dict[str, Any], words: str, copy: Any
) -> None:
    directory = copy(family)
    rewrite(directory, changes)
    refused(directory, words)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"model_type": "llama", "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"model_type": "llama", "a": ' + '{"b": ' * 900 + "1" + "}" * 900 + "}",
        '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
        '{"model_type": "llama", "hidden_size": ' + "9" * 400 + "}",
        '{"model_type": ["llama"]}',
        '{"model_type": "llama", "text_config": {"num_hidden_layers": 1000000000000}}',
        "\ufeff{}",
        "null",
        "\0",
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_texts_that_are_no_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    refused(tmp_path, "")


def read_everything(directory: Path) -> None:
    opened = Checkpoint.open(directory)
    assert opened.eos_token_ids
    assert opened.tokenizer


def test_files_that_never_end_are_not_read(copy: Any) -> None:
    """Pipes would be waited for, devices read until memory ends, and so would links to them."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        directory = copy("llama")
        (directory / "tokenizer.json").touch()
        for make in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
            (directory / name).unlink(missing_ok=True)
            make(directory / name)
            with pytest.raises(CheckpointError, match="is not a regular file"):
                read_everything(directory)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def test_a_config_as_long_as_a_model_is_not_read(copy: Any) -> None:
    directory = copy("llama")
    with (directory / "config.json").open("ab") as file:
        file.truncate(2**30)
    refused(directory, "is longer than 16 MiB")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["silu", "default", "llama3", "sliding_attention", "float16", 10**12]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_value_of_any_key_escapes(family: str, checkpoint: Any, tmp_path: Path) -> None:
    content = json.loads((checkpoint(family) / "config.json").read_text())
    keys = st.sampled_from(sorted(content))

    @examples(60)
    @given(st.dictionaries(keys, VALUES, min_size=1, max_size=2))
    def check(changes: dict[str, Any]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(content | changes))
        # Whatever else is raised fails the test.
        with suppress(ForerunError):
            opened = Checkpoint.open(tmp_path)
            assert opened.summary.parameters > 0
            assert opened.eos_token_ids is not None

    check()
