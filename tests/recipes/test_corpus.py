"""The zoo's text: a fixed split, a lossless tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import TrainingError
from recipes.corpus import (
    END_OF_TEXT,
    Module,
    encode,
    read_modules,
    train_tokenizer,
)

SOURCE = "def f(x):\n    return [x, 12]  # naïve 日本 🙂\n\n\nclass A:\n\tpass\n"


def test_modules_are_read_by_path_and_data_is_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "pkg/b.py", "encodings/cp1.py", "site-packages/c.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(SOURCE)
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    assert [module.path for module in read_modules(tmp_path)] == ["a.py", "pkg/b.py"]
    with pytest.raises(TrainingError, match="no Python source"):
        read_modules(tmp_path / "nowhere")


def test_the_split_depends_on_the_path_alone_and_holds_out_few() -> None:
    paths = [f"package/module_{number}.py" for number in range(3200)]
    held_out = [Module(path, "").held_out for path in paths]
    assert held_out == [Module(path, "other text").held_out for path in paths]
    assert 60 < sum(held_out) < 140


TOKENIZER = train_tokenizer(iter([SOURCE] * 5), 300)


@given(st.text(max_size=40))
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_texts_end_with_token_zero() -> None:
    assert TOKENIZER.token_to_id(END_OF_TEXT) == 0
    tokens = encode(TOKENIZER, [Module("a", "x = 1\n"), Module("b", "y\n")])
    assert tokens.dtype == np.uint16
    assert (tokens == 0).sum() == 2
    assert tokens[-1] == 0
