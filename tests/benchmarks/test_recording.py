"""What is recorded of an output is what the engine would have done at each of its positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals import record
from benchmarks.rivals.records import RecordedOutput, Records
from benchmarks.rivals.replay import Fixed, replay
from benchmarks.rivals.steering import SetLength
from benchmarks.rivals.workbench import Workbench
from forerun.bench.runs import EncodedPrompt
from forerun.core import Batch, Hints
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ConfigError
from forerun.params import SamplingParams
from tests.helpers.covering import covering
from tests.helpers.recorded import costs, output
from tests.matrix import DRAFTERS, ROWS, TARGET, DrafterCase

PROMPTS = ((1, 2, 3, 1, 2, 3, 1), (5, 4, 5, 4, 7))
LONGEST = 5
# It learns from the tokens that were rejected, so that its drafts depend on the lengths before.
LEARNS_FROM_REJECTED = "token_recycling"


def workbench(case: DrafterCase) -> Workbench:
    config = SpeculativeConfig.from_dict(
        {
            **case.config,
            "num_speculative_tokens": LONGEST,
            "policy": "fixed",
            "draft_sample_method": case.draft_sample_method,
        }
    )
    policy = SetLength()
    engine = Engine(
        TARGET, case.make(), config, policy=policy, eos_token_ids=[0], max_batch_size=ROWS
    )
    return Workbench(engine, policy, case.name, LONGEST, "tree" in case.config)


def engine_rounds(
    bench: Workbench, prompt: EncodedPrompt, params: SamplingParams, length: int
) -> int:
    bench.policy.lengths = (length,)
    with bench.engine.idle_cache():
        pass
    hints = Hints(namespace=f"{prompt.prompt_id} {length}")
    done = bench.engine.generate(list(prompt.token_ids), params, hints=hints)
    return done.stats.num_target_forwards


@pytest.mark.parametrize(
    ("case", "seed"),
    covering(DRAFTERS, [None, 7]),
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_a_replayed_length_takes_the_rounds_that_the_engine_takes(
    case: DrafterCase, seed: int | None
) -> None:
    """Every method, chains and trees, greedy and with a seed: exactly as many forwards, at any length."""
    bench = workbench(case)
    params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=24)
    whole = "tree" in case.config
    for number, ids in enumerate(PROMPTS):
        prompt = EncodedPrompt(str(number), "made", ids)
        recorded = bench.record(prompt, params)
        plain = bench.plain.generate(list(ids), params)
        assert recorded.token_ids == plain.token_ids
        learns = case.name.startswith(LEARNS_FROM_REJECTED)
        for length in (LONGEST,) if whole or learns else (1, 2, 3, LONGEST):
            replayed = replay(
                [{case.name: recorded}], {case.name: costs()}, Fixed(case.name, length)
            )
            assert replayed.rounds == engine_rounds(bench, prompt, params, length), length
            assert replayed.tokens == len(plain.token_ids)


def test_the_text_of_a_recording_has_the_targets_distribution_whatever_is_drafted() -> None:
    """Without a seed the first token of each verdict is emitted: over many runs as often as plainly."""
    case = next(case for case in DRAFTERS if case.name == "draft_model")
    bench = workbench(case)
    bench.engine.use_seeds(iter(range(10**6)).__next__)
    params = SamplingParams(max_tokens=2)
    prompt = EncodedPrompt("0", "made", PROMPTS[0])
    counts = torch.zeros(TARGET.vocab_size)
    for _ in range(400):
        counts[bench.record(prompt, params).token_ids[0]] += 1
    cache = TARGET.new_cache(1, 32)

    logits = TARGET.forward(Batch.after(cache, [0], [prompt.token_ids]), cache).logits
    assert logits is not None
    expected = logits[0, -1].float().softmax(-1)
    assert float((counts / 400 - expected).abs().max()) < 0.1


def test_timed_rounds_cover_all_lengths_and_leave_the_drafter_as_it_was() -> None:
    case = next(case for case in DRAFTERS if case.name == "ngram")
    bench = workbench(case)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    prompt = EncodedPrompt("0", "made", PROMPTS[0])
    before = bench.record(prompt, params)
    timing = bench.time(prompt, params)
    assert {one.nodes for one in timing.rounds} >= {0.0, 1.0, 2.0, 4.0}
    assert len(timing.plain) == 30
    after = bench.record(prompt, params)
    assert (after.depths, after.accepted) == (before.depths, before.accepted)
    assert len(bench.time(prompt, params, batch_size=2).plain) == 30


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    records = Records.open(path, {"model": "made"})
    case = next(case for case in DRAFTERS if case.name == "draft_model")
    bench = workbench(case)
    params = SamplingParams(max_tokens=8, seed=None)
    prompt = EncodedPrompt("0", "made", PROMPTS[0])
    records.add(bench.record(prompt, params))
    records.add(output("other"))
    records.add(bench.time(prompt, params))
    again = Records.read(path)
    assert again.made_with == {"model": "made"}
    assert again.outputs == records.outputs
    assert again.timings == records.timings
    assert any(map(any, next(iter(again.outputs.values())).token_probs))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: [], "not a file of `python -m benchmarks.rivals.record`"),
        (lambda lines: [lines[0], "{"], "line 2"),
        (lambda lines: lines[1:], "not a file of"),
        (lambda lines: [lines[0], lines[1].replace('"depths"', '"width"')], "line 2"),
        (lambda lines: [lines[0], json.dumps({**json.loads(lines[1]), "nodes": [1]})], "nodes"),
        (lambda lines: [lines[0], "[1, 2]"], "line 2"),
    ],
)
def test_a_damaged_file_is_refused_by_line(tmp_path: Path, spoil: object, words: str) -> None:
    path = tmp_path / "rounds.jsonl"
    Records.open(path, {}).add(output("made"))
    lines = path.read_text(encoding="utf-8").splitlines()
    content = "".join(f"{line}\n" for line in spoil(lines))  # type: ignore[operator]
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        Records.read(path)


def test_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    Records.open(path, {"model": "one"}).add(output("made"))
    with pytest.raises(ConfigError, match="model 'one', not 'two'"):
        Records.open(path, {"model": "two"})


def test_more_accepted_than_drafted_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    wrong: RecordedOutput = replace(output("made"), accepted=(9,) * 40)
    Records.open(path, {}).add(wrong)
    with pytest.raises(ConfigError, match="more tokens are accepted than drafted"):
        Records.read(path)


def test_a_file_that_is_closed_can_be_gone_on_with_in_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with Records.open(path, {}) as records:
        records.add(output("made"))
        with pytest.raises(ConfigError, match="another run is writing"):
            Records.open(path, {})
    with Records.open(path, {}) as again:
        assert again.outputs == records.outputs


@pytest.mark.zoo
def test_a_recording_goes_on_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "rounds.jsonl"
    prompts.write_text("".join(f'"def add(a, b, c{n}):"\n' for n in range(3)), encoding="utf-8")
    few = ("--num-prompts", "2", "--max-tokens", "8", "--longest", "3", "--seconds", "0.01")
    run = ["--model", "zoo", "--prompts", str(prompts), *few, "--methods", "draft_model"]
    for _ in range(2):
        record.main([*run, "--output", str(file)])
        assert len(Records.read(file).outputs) == 2
        assert len(file.read_text(encoding="utf-8").splitlines()) == 1 + 2 + 2
    rivals.main([str(file), "--orders", "1"])
    assert "fixed, 3" in capsys.readouterr().out
