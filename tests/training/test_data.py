"""A file of data depends on its settings alone: not on the batch, and not on where a run was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun.engine.engine import Engine
from forerun.errors import ConfigError, ForerunError, PromptError, TrainingError
from forerun.measure.questions import Question
from forerun.progress import watched_by
from forerun.testing import ToyModel
from forerun.training.conversations import RECORDS, Record
from forerun.training.data import DataRun, Summary
from forerun.training.settings import DataSettings
from tests.helpers.toy_chat import END, MARKS, WORDS, toy_engine, toy_tokenizer

SETTINGS = DataSettings(max_tokens=24, prompt_tokens=24, num_conversations=14)


def make(
    path: Path, engine: Engine | None = None, settings: DataSettings = SETTINGS, **options: Any
) -> Summary:
    with DataRun(engine or toy_engine(), path, settings, model="toy", **options) as run:
        return run.run()


def asked(
    *texts: str | Sequence[str], category: str = "c", system: str | None = None
) -> list[Question]:
    turns = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    return [Question(turn, category, "file", system) for turn in turns]


def prompts(path: Path) -> list[str]:
    return [record.prompt for record in RECORDS.read(path)]


def test_a_model_asks_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    summary = make(path)
    records, tokenizer = list(RECORDS.read(path)), toy_tokenizer()
    assert len(records) == summary.conversations == summary.answers == 14
    for record in records:
        text = f"<user> {record.prompt} <end> <reply>"
        assert record.prompt_ids == tokenizer.encode(text, add_special_tokens=False)
        assert record.finish == ("stop" if record.answer_ids[-1] == END else "length")
        assert (record.source, record.category) == ("magpie", "magpie")
        assert tokenizer.decode(record.answer_ids, skip_special_tokens=True) == record.answer
    assert len({record.seed for record in records}) == len(records)
    assert {record.temperature for record in records} == {0.0, 1.0}
    assert summary.skipped.total() == records[-1].item + 1 - len(records) > 0
    assert summary.answer_tokens == sum(len(record.answer_ids) for record in records)


def test_answers_are_those_of_plain_decoding(tmp_path: Path) -> None:
    path, engine = tmp_path / "data.jsonl", toy_engine(1)
    make(path)
    seeds = iter([record.seed for record in RECORDS.read(path)])
    engine.use_seeds(lambda: next(seeds))
    for record in RECORDS.read(path):
        stream = engine.stream_plain(
            record.prompt_ids, temperature=record.temperature, max_tokens=SETTINGS.max_tokens
        )
        assert [event.token_id for event in stream] == record.answer_ids


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_batch_makes_no_difference(tmp_path: Path, rows: int) -> None:
    make(tmp_path / "one.jsonl", toy_engine(3))
    make(tmp_path / "other.jsonl", toy_engine(rows))
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()


class StoppedError(Exception):
    """Stands for whatever ends a run."""


def interrupted(path: Path, after: int, questions: list[Question] | None) -> None:
    """A run that ends after so many steps, and in the middle of a line."""
    engine, steps = toy_engine(2), 0
    step = engine._scheduler.step

    def counted() -> Any:
        nonlocal steps
        steps += 1
        if steps > after:
            raise StoppedError
        return step()

    engine._scheduler.step = counted  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        make(path, engine, questions=questions)
    assert not engine.has_work
    with path.open("ab") as file:
        file.write(b'{"source": "magpie", "prom')


@pytest.mark.parametrize("own", [True, False])
def test_an_interrupted_run_goes_on_to_the_same_file(tmp_path: Path, own: bool) -> None:
    """In the first lot of conversations, and in the one after it, again and again."""
    turns = [[f"w{i} w{i + 1}", "w3", "w4 w4"] for i in range(12)]
    # Repetitions are found on both sides of an interruption.
    questions = None if own else asked(*turns, *turns[:9], "w1 w2", "", "w9")
    whole, path = tmp_path / "whole.jsonl", tmp_path / "data.jsonl"
    expected = make(whole, questions=questions)
    sizes = []
    for after in (0, 60, 100, 40, 20):
        interrupted(path, after, questions)
        sizes.append(path.stat().st_size)
    summary = make(path, questions=questions)
    assert path.read_bytes() == whole.read_bytes()
    assert sizes == sorted(sizes)
    assert sizes[0] == sizes[1] < sizes[2]
    if own:
        # What is skipped after the last record is counted anew in every run, but not written.
        assert summary.skipped == expected.skipped
    assert summary.categories == expected.categories
    assert summary.answer_tokens == expected.answer_tokens
    assert 0 < summary.new_conversations < expected.conversations
    make(path, questions=questions)
    assert path.read_bytes() == whole.read_bytes()


def test_a_longer_run_goes_on_from_a_shorter(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "data.jsonl"
    make(whole)
    make(path, settings=replace(SETTINGS, num_conversations=5))
    assert len(prompts(path)) == 5
    make(path)
    assert path.read_bytes() == whole.read_bytes()
    with pytest.raises(TrainingError, match=r"was made with temperature 1\.0, not 0\.5"):
        make(path, settings=replace(SETTINGS, temperature=0.5))
    with pytest.raises(TrainingError, match="was made with questions None, not"):
        make(path, questions=asked("w1"))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    long = " ".join(WORDS[:16])
    questions = asked(
        *("w1 w2 w3 w4", " W1  w2 w3 w4 ", "w1 w2 w3, w4!", "", "w5 " * 110),
        *(f"w7 {long} w3", "w5 w6", ["w8", "w9 w9 w9 w9 w10"], "w11"),
    )
    settings = replace(SETTINGS, num_conversations=None)
    keep_out = asked(f"w0 w1 {long}", "w9 w9 w9 w9 w10", "w5  W6")
    summary = make(path, settings=settings, questions=questions, keep_out=keep_out)
    assert prompts(path) == ["w1 w2 w3 w4", "w11"]
    assert summary.skipped == {
        "duplicate": 2,
        "empty": 1,
        "too_long": 1,
        "kept_out": 3,
    }
    assert list(RECORDS.read(path))[1].skipped == summary.skipped


def test_own_prompts_are_kept_out_too(tmp_path: Path) -> None:
    path, other = tmp_path / "data.jsonl", tmp_path / "other.jsonl"
    make(path)
    unwanted = prompts(path)[::3]
    summary = make(other, keep_out=asked(*unwanted))
    assert not set(unwanted) & set(prompts(other))
    assert summary.skipped["kept_out"] >= len(unwanted)
    assert summary.conversations == 14


def test_turns_are_answered_in_their_conversation(tmp_path: Path) -> None:
    path, tokenizer = tmp_path / "data.jsonl", toy_tokenizer()
    questions = [
        *asked(["w1", "w2", "w3"], ["w4", "w5"], system="w0"),
        *asked(*([f"w{i}", "w6"] for i in range(7, 19)), category="d"),
    ]
    settings = replace(SETTINGS, num_conversations=None)
    summary = make(path, settings=settings, questions=questions, system="w19")
    records = list(RECORDS.read(path))
    assert summary.conversations == 14 < summary.answers
    before: list[Record] = []
    for record in records:
        before = before if record.turn else []
        system = "w0" if record.category == "c" else "w19"
        said = "".join(f"<user> {r.prompt} <end> <reply> {r.answer} <end> " for r in before)
        text = f"<system> {system} <end> {said}<user> {record.prompt} <end> <reply>"
        assert record.prompt_ids == tokenizer.encode(text, add_special_tokens=False)
        assert record.turn == len(before)
        before.append(record)
        # A conversation ends where an answer was cut.
        last = record.finish == "length" or record.turn + 1 == len(questions[record.item].turns)
        assert record.more is not last
    assert {record.category for record in records} == {"c", "d"}
    assert {record.turn for record in records} == {0, 1, 2}


def test_template_variables_are_used(tmp_path: Path) -> None:
    make(tmp_path / "data.jsonl", questions=asked("w1"), variables={"loud": True})
    [record] = RECORDS.read(tmp_path / "data.jsonl")
    assert toy_tokenizer().decode(record.prompt_ids) == "<user> w1 <end> w19 <reply>"
    assert RECORDS.read_header(tmp_path / "data.jsonl")["template_vars"] == {"loud": True}


def test_a_base_model_goes_on_with_its_own_texts(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    make(path, toy_engine(template=None))
    records = list(RECORDS.read(path))
    assert len(records) == 14
    assert {record.source for record in records} == {"sampled"}
    assert len({len(record.prompt_ids) for record in records}) > 3
    for record in records:
        assert record.prompt_ids[0] == END
        assert record.prompt == toy_tokenizer().decode(record.prompt_ids, skip_special_tokens=True)


def test_a_base_model_goes_on_with_texts_of_a_file(tmp_path: Path) -> None:
    path, engine = tmp_path / "data.jsonl", toy_engine(template=None)
    make(path, engine, questions=asked("w1 w2", ["w3 w4", "w5"]))
    assert [record.prompt_ids for record in RECORDS.read(path)] == [[5, 6], [7, 8]]
    for option in ({"system": "w1"}, {"variables": {"loud": True}}):
        with pytest.raises(PromptError, match="need a chat template"):
            make(tmp_path / "other.jsonl", engine, **option)


def test_the_share_of_greedy_answers() -> None:
    for share in (0.0, 0.25, 0.33, 1.0):
        settings = DataSettings(greedy_share=share, temperature=0.7)
        drawn = [settings.temperature_of(item) for item in range(400)]
        assert set(drawn) <= {0.0, 0.7}
        assert drawn.count(0.0) == pytest.approx(400 * share, abs=1)


def never_ending() -> Engine:
    """What it takes for a user never comes to an end."""
    target = ToyModel(len(MARKS) + len(WORDS))
    return Engine(target, tokenizer=toy_tokenizer("<user> {{ messages[-1].content }}"))


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        (never_ending, {}, "500 prompts in a row .* cannot be used .500 unfinished"),
        (
            toy_engine,
            {"settings": replace(SETTINGS, max_tokens=200)},
            "do not fit a context of 128",
        ),
        (toy_engine, {"variables": {"silent": True}}, "unknown template variable 'silent'"),
        (lambda: Engine(toy_engine().target), {}, "an engine with a tokenizer"),
        (lambda: toy_engine(template="{{ raise_exception('no') }}"), {}, "refuses the messages"),
        (lambda: toy_engine(template="{{ messages | length }}"), {}, "give a file of prompts"),
    ],
)
def test_what_cannot_be_made_is_refused(
    tmp_path: Path, engine: Callable[[], Engine], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ForerunError, match=said):
        make(tmp_path / "data.jsonl", engine(), **options)
    assert not (tmp_path / "data.jsonl").exists() or not list(RECORDS.read(tmp_path / "data.jsonl"))


def test_progress_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with watched_by(lambda *progress: seen.append(progress)):
        make(tmp_path / "data.jsonl")
        make(tmp_path / "asked.jsonl", questions=asked("w1", "", "w2"))
    assert seen[-1] == ("questions", 3, 3)
    assert [progress for progress in seen if progress[1:] == (14, 14)]
    assert all(done <= total for _, done, total in seen)


def test_a_request_that_fails_ends_the_run(tmp_path: Path) -> None:
    engine = toy_engine()
    forward, calls = engine.target.forward, 0

    def failing(batch: Any, cache: Any) -> Any:
        nonlocal calls
        calls += 1
        output = forward(batch, cache)
        if calls > 30 and output.logits is not None:
            output.logits.fill_(float("nan"))
        return output

    engine.target.forward = failing  # type: ignore[method-assign]
    with pytest.raises(ForerunError, match="NaN"):
        make(tmp_path / "data.jsonl", engine)
    assert not engine.has_work


def test_engines_with_a_drafter_are_refused(tmp_path: Path) -> None:
    from tests.helpers.engines import engine

    with pytest.raises(ConfigError, match="without a drafter"):
        make(tmp_path / "data.jsonl", engine())
