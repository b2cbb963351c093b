"""A target that drafts with its own layers says what it says by itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import forerun
from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Batch, Drawing, Exactness, ForwardOutput, Plan, Request
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.models import load_model
from forerun.models.running import prefill
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.sampling import Prefix, most_probable, warp
from forerun.testing import ToyModel
from tests.helpers.against_plain import accepted
from tests.helpers.covering import covering
from tests.helpers.forwards import run
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.layered import LayeredToyModel
from tests.helpers.tiny_models import tiny_model
from tests.matrix import VOCAB

LAYERS = 3
ROWS = 3
EXITS = (1, 2)
TEXTS = [[5, 6, 7, 5, 6], [9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]


def engine_of(
    target: CausalLM,
    exit_layer: int,
    rows: int = ROWS,
    **options: Any,
) -> forerun.Engine:
    options = {"num_speculative_tokens": 4, "policy": "fixed", **options}
    config = forerun.SpeculativeConfig(method=None, **options)
    drafter = LayerSkipDrafter(target, exit_layer)
    return forerun.Engine(target, drafter, config, max_batch_size=rows)


def cache_of(engine: forerun.Engine) -> Any:
    return engine._parts.cache


@needs_kernels
@pytest.mark.parametrize(
    ("name", "exit_layer", "precision"),
    covering(["mistral", "qwen3", "gpt2"], EXITS, ["fp32", "bf16", "int8", "int4"]),
)
def test_kernels_give_plain_decodings_tokens(name: str, exit_layer: int, precision: str) -> None:
    target = kernel_model(name, precision)
    assert target.exactness is Exactness.BITWISE
    engine = engine_of(target, exit_layer)
    for params in (
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_tokens=40),
    ):
        accepted(engine, TEXTS, params)


@pytest.mark.parametrize(("name", "exit_layer"), covering(["mistral", "qwen3", "gpt2"], EXITS))
def test_torch_gives_plain_decodings_tokens(name: str, exit_layer: int, tmp_path: Path) -> None:
    tiny_model(name).save_pretrained(tmp_path)
    target = load_model(tmp_path, dtype="fp64", backend="torch")
    engine = engine_of(target, exit_layer)
    shares = [
        accepted(engine, TEXTS, SamplingParams(temperature=0, max_tokens=30)),
        accepted(engine, TEXTS, SamplingParams(temperature=0.7, seed=3, max_tokens=30)),
    ]
    # Some drafts were followed and some were not, so rows were rolled back.
    assert max(shares) > 0
    assert min(shares) < 1


class Watching(LayeredToyModel):
    """Notes how many tokens each layer has run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ran: list[int] = [0] * self.num_layers

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        for layer in batch.layers or range(self.num_layers):
            self.ran[layer] += sum(batch.counts)
        return super().forward(batch, cache)


def request(token_ids: list[int], row: int = 0, **params: Any) -> Request:
    return Request(row, token_ids, 1, SamplingParams(**params), seed=row, row=row)


def drafter_with(target: CausalLM, exit_layer: int, texts: list[list[int]]) -> tuple[Any, Any]:
    """A drafter, and a cache that holds all but the newest token of each text."""
    drafter, cache = LayerSkipDrafter(target, exit_layer), target.new_cache(len(texts), 64)
    drafter.attach(cache)
    for row, text in enumerate(texts):
        if len(text) > 1:
            prefill(target, cache, row, text[:-1])
    return drafter, cache


@pytest.mark.parametrize("exit_layer", EXITS)
def test_each_token_runs_once_through_the_shared_layers(exit_layer: int) -> None:
    target = Watching(VOCAB)
    drafter, cache = drafter_with(target, exit_layer, [[1, 2, 3], [4, 5]])
    target.ran = [0] * LAYERS
    requests = [request([1, 2, 3]), request([4, 5], 1)]
    drafts = drafter.propose(requests, [Plan(3), Plan(1)], Randomness())
    assert [len(draft) for draft in drafts] == [3, 1]
    # The newest token and all drafted ones below the exit, none above it.
    assert target.ran == [6] * exit_layer + [0] * (LAYERS - exit_layer)
    for layer in range(LAYERS):
        shared = layer < drafter.shared_layers
        assert [len(cache.layers[layer][row]) for row in (0, 1)] == ([6, 3] if shared else [2, 1])


def test_hidden_states_are_the_targets_own() -> None:
    target = LayeredToyModel(VOCAB)
    drafter, _ = drafter_with(target, 2, [[1, 2, 3], [4, 5]])
    one, other = request([1, 2, 3]), request([4, 5], 1)
    drafts = drafter.propose([one, other], [Plan(3, Drawing.SAMPLED), Plan(0)], Randomness())
    assert len(drafts[1]) == 0
    for text, draft in zip((one, other), drafts, strict=True):
        ids = [*text.token_ids, *draft.token_ids]
        wanted = run(target, target.new_cache(1, 64), [ids], hidden_layers=(2,)).hidden[2][0]
        assert draft.hidden is not None
        assert torch.equal(draft.hidden, wanted[len(text) - 1 :])


class BrokenError(Exception):
    """What a layer might raise."""


@pytest.mark.parametrize("exit_layer", EXITS)
def test_a_draft_that_fails_leaves_the_cache_as_it_was(exit_layer: int) -> None:
    """A layer that breaks in the middle of a round; then the request goes on as if nothing was."""
    target = LayeredToyModel(VOCAB)
    engine = engine_of(target, exit_layer, rows=2)
    wanted = engine.generate([[1, 2, 3], [4]], SamplingParams(temperature=0, max_tokens=12))
    calls = 0
    head = target.lm_head

    def failing(hidden: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise BrokenError
        return head(hidden)

    forward = target.forward

    def failing_forward(batch: Batch, cache: Any) -> Any:
        if (batch.layers or range(0)).start > exit_layer:
            failing(torch.zeros(1))
        return forward(batch, cache)

    target.lm_head = failing  # type: ignore[method-assign]
    target.forward = failing_forward  # type: ignore[method-assign]
    stream = engine.stream([1, 2, 3], SamplingParams(temperature=0, max_tokens=12))
    # Where the target's own part of the round breaks, the caller has the error.
    with suppress(BrokenError):
        assert tuple(event.token_id for event in stream) == wanted[0].token_ids
    assert calls >= 3
    target.lm_head, target.forward = head, forward  # type: ignore[method-assign]
    for row in range(2):
        lengths = {len(layer[row]) for layer in cache_of(engine).layers}
        assert len(lengths) == 1
    again = engine.generate([[1, 2, 3], [4]], SamplingParams(temperature=0, max_tokens=12))
    assert [one.token_ids for one in again] == [one.token_ids for one in wanted]


def test_drafts_do_not_depend_on_their_neighbours() -> None:
    """Of a batch whose first rows end early each draft is the one that its row gets alone, and the
    rows of probability are those that its tokens were drawn from."""
    target, texts = LayeredToyModel(VOCAB), [[4, 5], [9], [1, 2, 3], [7, 7, 2]]
    plans = [Plan(0), Plan(1, Drawing.SAMPLED), Plan(3, Drawing.SAMPLED), Plan(4, Drawing.COUPLED)]
    requests = [request(text, row) for row, text in enumerate(texts)]
    drafter, _ = drafter_with(target, 1, texts)
    together = drafter.propose(requests, plans, Randomness())
    for text, plan, one, draft in zip(texts, plans, requests, together, strict=True):
        lone, _ = drafter_with(target, 1, [text])
        alone = lone.propose([replace(one, row=0)], [plan], Randomness())[0]
        assert len(draft) == plan.num_tokens
        assert draft.token_ids == alone.token_ids
        assert (draft.probs is not None) == (plan.drawing is Drawing.SAMPLED and len(draft) > 0)
        for node in range(len(draft) if isinstance(draft.probs, Tensor) else 0):
            # An exit after one layer sees one token.
            logits = target.tables[0, [*text, *draft.token_ids][len(text) - 1 + node]]
            row = warp(logits[None], [Prefix(one, draft.token_ids[:node])])[0]
            torch.testing.assert_close(draft.probs[node], row)


@pytest.mark.parametrize("exit_layer", EXITS)
def test_what_fails_is_forgotten_above_the_shared_layers(
    exit_layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = LayeredToyModel(VOCAB)
    drafter, cache = drafter_with(target, exit_layer, [[1, 2, 3]])

    levels = []

    def failing(*rows: Any) -> Any:
        levels.append(rows)
        if len(levels) == 3:
            raise BrokenError
        return most_probable(*rows)

    monkeypatch.setattr("forerun.trees.growth.most_probable", failing)
    with pytest.raises(BrokenError):
        drafter.propose([request([1, 2, 3])], [Plan(4)], Randomness())
    held = [len(cache.layers[layer][0]) for layer in range(LAYERS)]
    assert held == [5] * exit_layer + [2] * (LAYERS - exit_layer)


def test_no_more_is_drafted_than_the_cache_holds() -> None:
    target = LayeredToyModel(VOCAB)
    drafter = LayerSkipDrafter(target, 1)
    cache = target.new_cache(1, 6)
    drafter.attach(cache)
    prefill(target, cache, 0, [1, 2])
    assert len(drafter.propose([request([1, 2, 3])], [Plan(8)], Randomness())[0]) == 3


def test_stop_tokens_and_masks_end_a_draft() -> None:
    target = LayeredToyModel(VOCAB)
    drafter, _ = drafter_with(target, 1, [[1, 2, 3]])
    full = drafter.propose([request([1, 2, 3])], [Plan(4)], Randomness())[0]
    assert len(full) == 4
    drafter, _ = drafter_with(target, 1, [[1, 2, 3]])
    stopping = replace(request([1, 2, 3]), stop_token_ids=frozenset({full.token_ids[0]}))
    draft = drafter.propose([stopping], [Plan(4)], Randomness())[0]
    assert draft.token_ids == full.token_ids[:1]
    assert draft.hidden is not None
    assert len(draft.hidden) == 2
    drafter, _ = drafter_with(target, 1, [[1, 2, 3]])
    nothing = request([1, 2, 3], mask=lambda committed, drafted: [not drafted] * VOCAB)
    assert len(drafter.propose([nothing], [Plan(4)], Randomness())[0]) == 1


def test_a_draft_never_leaves_the_cache() -> None:
    target = LayeredToyModel(VOCAB, max_context=16)
    engine = engine_of(target, 1, rows=1)
    params = SamplingParams(temperature=0, max_tokens=13)
    accepted(engine, [[1, 2, 3]], params)


@needs_kernels
@pytest.mark.zoo
@pytest.mark.parametrize(
    "options",
    [{}, {"exit_layer": 1}],
    ids=["default", "exit"],
)
@pytest.mark.parametrize(
    "dtype", ["int8", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("bf16", "int4"))]
)
def test_the_zoo(dtype: str, options: dict[str, Any]) -> None:
    config = forerun.SpeculativeConfig(method="layer_skip", policy="fixed", options=options)
    engine = forerun.load("zoo", config, dtype=dtype, device="cpu", max_batch_size=2)
    assert isinstance(engine.drafter, LayerSkipDrafter)
    texts = ["def add(a, b):\n    return a", "import os\nimport sys\n\n\nclass"]
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=5, max_tokens=20)
        accepted(engine, texts, params)


@pytest.mark.parametrize("exit_layer", [0, 3, 4, -1])
def test_an_exit_lies_inside_the_target(exit_layer: int) -> None:
    with pytest.raises(ConfigError, match=f"the exit is after layer {exit_layer} and toy"):
        LayerSkipDrafter(LayeredToyModel(VOCAB), exit_layer)


@pytest.mark.parametrize("in_cascade", [False, True])
def test_one_engine_has_a_drafter_at_a_time(in_cascade: bool) -> None:
    """In another engine's cache it would draft from texts that are not the request's."""
    target = LayeredToyModel(VOCAB)
    alone = LayerSkipDrafter(target, 1)
    drafter = CascadeDrafter([NgramDrafter(1, 3), alone]) if in_cascade else alone
    config = forerun.SpeculativeConfig(policy="fixed")
    engine = forerun.Engine(target, drafter, config)
    with pytest.raises(ConfigError, match="build a drafter for each engine"):
        forerun.Engine(target, drafter)
    alone.attach(cache_of(engine))
    params = SamplingParams(temperature=0, max_tokens=20)
    accepted(engine, TEXTS[:2], params)
    del engine
    accepted(forerun.Engine(target, drafter, config), TEXTS[:2], params)


def test_a_target_without_layers_is_refused() -> None:
    target = ToyModel(VOCAB)
    target.num_layers = 4
    with pytest.raises(UnsupportedModelError, match="no layers to run apart"):
        LayerSkipDrafter(target, 2)


def built(target: CausalLM, **options: Any) -> LayerSkipDrafter:
    def load_draft_model() -> CausalLM:
        raise AssertionError

    return LayerSkipDrafter.build(DrafterSetup(target, 1, 32, options, load_draft_model))


def test_options() -> None:
    target = LayeredToyModel(VOCAB, order=8)
    assert built(target).shared_layers == 2
    assert built(target, exit_layer=5).shared_layers == 5
    with pytest.raises(ConfigError, match="the exit is after layer 8 and toy-11 has 8; give"):
        built(target, exit_layer=8)
    with pytest.raises(ConfigError, match="another method"):
        built(LayeredToyModel(VOCAB, order=1))
