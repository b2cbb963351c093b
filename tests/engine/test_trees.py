"""Trees through the engine: asked for by the config, planned for every round, exact as ever."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.core import Draft, Drawing, Hints, Tree, Verdict
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.parts import TimedRound
from forerun.errors import ConfigError, PromptError
from forerun.params import SamplingParams
from forerun.testing import ToyModel
from forerun.trees.search import plan_tree

TARGET, DRAFT = ToyModel(11), ToyModel(11, noise=1.0)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8]]
SHAPE = Tree.branching((3, 2, 1))


def make(**options: object) -> Engine:
    config = SpeculativeConfig(policy="fixed", **options)  # type: ignore[arg-type]
    return Engine(TARGET, DraftModelDrafter(DRAFT, 3, 512), config, max_batch_size=3)


def rounds_of(engine: Engine, params: SamplingParams) -> list[tuple[int, Draft, Verdict]]:
    seen: list[tuple[int, Draft, Verdict]] = []

    def see(done: TimedRound) -> None:
        rounds = zip(done.requests, done.drafts, done.verdicts, strict=True)
        seen.extend((len(r) - len(v.token_ids), draft, v) for r, draft, v in rounds)

    engine.watch_rounds(see)
    engine.generate(PROMPTS, params)
    engine.watch_rounds(None)
    return seen


@pytest.mark.parametrize("tree", ["auto", SHAPE, list(SHAPE.parents), SHAPE.paths])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(seed=5)])
def test_trees_of_all_kinds_give_plain_tokens(tree: object, params: SamplingParams) -> None:
    engine = make(tree=tree, num_speculative_tokens=3)
    asked = replace(params, max_tokens=20)
    for prompt, done in zip(PROMPTS, engine.generate(PROMPTS, asked), strict=True):
        plain = tuple(event.token_id for event in engine.stream_plain(prompt, asked))
        assert done.token_ids == plain
        assert done.stats.num_draft_tokens > 3 * done.stats.num_drafts, "that was no tree"


@pytest.mark.parametrize(
    ("params", "drawn"),
    [
        (SamplingParams(temperature=0.0), False),
        (SamplingParams(), True),
        (SamplingParams(seed=3), False),
    ],
)
def test_what_is_drawn_has_a_shape_and_the_rest_is_chosen(
    params: SamplingParams, drawn: bool
) -> None:
    engine = make(tree="auto", num_tree_nodes=9, num_speculative_tokens=4)
    seen = rounds_of(engine, replace(params, max_tokens=24))
    # Towards the end there is less room.
    full = [draft for start, draft, _ in seen if len(draft) == 9 and start < 20]
    assert len(full) > 10
    assert all((draft.probs is not None) == drawn for draft in full)
    shapes = {draft.tree.parents for draft in full}
    if params.greedy:
        assert len(shapes) > 1, "the most probable nodes differ from round to round"
    else:
        assert len(shapes) == 1


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_a_round_never_reaches_past_the_end(max_tokens: int) -> None:
    engine = make(tree=SHAPE, num_speculative_tokens=3)
    emitted: Counter[int] = Counter()

    def see(done: TimedRound) -> None:
        for request, draft, verdict in zip(done.requests, done.drafts, done.verdicts, strict=True):
            # The last token is the target's own: recovered, or a bonus.
            assert emitted[request.request_id] + draft.tree.depth + 1 <= max_tokens
            emitted[request.request_id] += len(verdict.token_ids)

    engine.watch_rounds(see)
    engine.generate(PROMPTS, SamplingParams(max_tokens=max_tokens))
    assert list(emitted.values()) == [max_tokens] * len(PROMPTS)


def test_rounds_that_are_watched_add_up_to_the_output() -> None:
    engine = make(tree="auto")
    seen: list[int] = []
    engine.watch_rounds(lambda done: seen.extend(done.verdicts[0].token_ids))
    done = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=17))[0]
    assert tuple(seen) == done.token_ids


def test_files_are_read_when_the_engine_is_built(tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text(json.dumps({"parents": SHAPE.parents}))
    engine = make(tree=str(tmp_path / "tree.json"), num_speculative_tokens=8)
    seen = rounds_of(engine, SamplingParams(temperature=0.0, max_tokens=30))
    assert {draft.tree.parents for _, draft, _ in seen if len(draft) == len(SHAPE)} == {
        SHAPE.parents
    }
    (tmp_path / "no-tree.json").write_text("[3]")
    with pytest.raises(ConfigError, match=r"no-tree\.json does not hold a tree"):
        make(tree=str(tmp_path / "no-tree.json"))


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="block verification takes chains"):
        make(tree="auto", rejection_sample_method="block")
    for nodes in (0, 129, 2.5):
        with pytest.raises(ConfigError, match="num_tree_nodes"):
            make(tree="auto", num_tree_nodes=nodes)
    with pytest.raises(ConfigError, match="is not a path"):
        make(tree=[[]])
    with pytest.raises(ConfigError, match="the tree is 3 deep and num_speculative_tokens is 2"):
        make(tree=SHAPE, num_speculative_tokens=2)
    for tree in (None, SHAPE):
        with pytest.raises(ConfigError, match="only tree 'auto' reads"):
            make(tree=tree, num_tree_nodes=8)

    class Chains(NgramDrafter):
        takes_trees = False

    with pytest.raises(ConfigError, match="proposes chains alone"):
        Engine(TARGET, Chains(), SpeculativeConfig(tree="auto"))


def test_plans_are_cut_to_the_room() -> None:
    assert plan_tree("auto", 8, 0, Drawing.GREEDY).tree is None
    cut = plan_tree(SHAPE, 8, 2, Drawing.SAMPLED)
    assert cut.num_tokens == 2
    assert cut.tree is not None
    assert cut.tree.parents == SHAPE.cut(2).parents
    whole = plan_tree(SHAPE, 8, 9, Drawing.SAMPLED)
    assert whole.tree is not None
    assert (whole.num_tokens, whole.tree.parents) == (9, SHAPE.parents)


def test_typical_acceptance_draws_no_trees_and_says_what_it_is() -> None:
    with pytest.raises(ConfigError, match="draft_sample_method 'greedy'"):
        make(tree="auto", rejection_sample_method="typical")
    engine = make(tree="auto", rejection_sample_method="typical", draft_sample_method="greedy")
    assert engine.exactness == "approximate"
    seen = rounds_of(engine, SamplingParams(max_tokens=12))
    assert all(draft.probs is None for _, draft, _ in seen)
    assert make().exactness == TARGET.exactness


def test_hints_are_checked_like_prompts() -> None:
    engine = make()
    with pytest.raises(PromptError, match="the prediction holds token id 99"):
        engine.stream([1, 2], hints=Hints(prediction=(99,)))
    with pytest.raises(ConfigError, match="a prediction as text needs a tokenizer"):
        engine.stream([1, 2], hints=Hints(prediction="text"))
    with pytest.raises(PromptError, match="the prediction is bytes"):
        engine.stream([1, 2], hints=Hints(prediction=b"text"))  # type: ignore[arg-type]
    for hints in (None, {"namespace": "mine"}, Hints(namespace=["mine"]), Hints(namespace=None)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"hints are a|a namespace is a text"):
            engine.add([1, 2], hints=hints)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="the prediction is bytes"):
        engine.add([1, 2], hints=Hints(prediction=b""))  # type: ignore[arg-type]
    nothing: list[Any] = ["", [], torch.tensor([], dtype=torch.long)]
    for prediction in (*nothing, torch.tensor([3, 4])):
        engine.cancel(engine.add([1, 2], hints=Hints(prediction=prediction)))
    with pytest.raises(ConfigError, match="3 prompts but 1 hints"):
        engine.generate(PROMPTS, hints=[Hints()])
