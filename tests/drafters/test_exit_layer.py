"""A trained layer behind an early exit drafts by the logits that it was trained to have, through rounds,
rollbacks and ragged batches, and changes nothing of the output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun import load
from forerun.contracts import CausalLM
from forerun.core import Batch, Draft, Plan, Request, Verdict
from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.layer_skip import ExitLayer, LayerSkipDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import CheckpointError, ForerunError
from forerun.heads.features import LARGEST_SHARED_CATCH_UP
from forerun.heads.files import HeadFiles
from forerun.heads.layer_skip import LayerSkipHead
from forerun.models.checkpoint import model_from_tensors
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import check_drafter
from forerun.trees.growth import grow, start
from tests.helpers.against_plain import accepted
from tests.helpers.drafter_runs import save_target
from tests.helpers.exit_layers import config_of, head_of, module_of, write
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.layered import LayeredToyModel
from tests.helpers.tiny_models import VOCAB, tiny_config, tiny_model

PROMPTS = [[3, 14, 15, 9, 2, 6], [5], [*range(40, 60), 7]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SAMPLED = SamplingParams(max_tokens=12, top_p=0.95)
SEEDED = SamplingParams(max_tokens=12, seed=3)
PENALTIES = SamplingParams(max_tokens=12, repetition_penalty=1.3, banned_token_ids=(4,))
FEW = torch.arange(0, VOCAB, 2)


@cache
def target(backend: str, dtype: str, family: str = "llama") -> CausalLM:
    model = tiny_model(family)
    return model_from_tensors(
        tiny_config(family), model.state_dict(), dtype=dtype, backend=backend, name="tiny"
    )


class Checked(LayerSkipDrafter):
    """Compares every draft with one by the logits of the layer as it is trained, over whole texts."""

    def __init__(
        self, on: CausalLM, ids: Tensor, exit_layer: int, atol: float, folder: Path
    ) -> None:
        self.ids, self.exit_layer, self.atol, self.drafted = ids, exit_layer, atol, 0
        self.module = module_of(on, ids, exit_layer)
        head = LayerSkipHead.open(on, HeadFiles.open(write(folder, on, ids, exit_layer)))
        super().__init__(on, exit_layer, layer=ExitLayer(head, len(PROMPTS), on.max_context))

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        for request, plan, draft in zip(requests, plans, drafts, strict=True):
            # Of a prompt of one token the target has run nothing yet.
            wanted = plan if len(request) > 1 else replace(plan, num_tokens=0)
            expected = self.expected(request, wanted, randomness)
            assert draft.token_ids == expected.token_ids
            assert (draft.probs is None) == (expected.probs is None)
            if isinstance(expected.probs, Tensor):
                torch.testing.assert_close(
                    draft.probs, expected.probs, rtol=0, atol=self.atol, check_dtype=False
                )
            self.drafted += len(draft)
        return drafts

    def expected(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        growth = start(request, plan)
        while growth.frontier:
            text = [*request.token_ids, *growth.token_ids]
            own = self.target.new_cache(1, len(text))
            batch = Batch.after(own, [0], [text], hidden_layers=(self.exit_layer,))
            output = self.target.forward(batch, own)
            with torch.no_grad():
                logits = self.module(output.hidden[self.exit_layer])[0, -1] @ self.module.output.T
            row = torch.full((1, self.target.vocab_size), -torch.inf, dtype=self.target.dtype)
            row[0, self.ids] = logits.to(self.target.dtype)
            grow([growth], row, randomness)
        return growth.finish()


def check(
    folder: Path,
    on: CausalLM,
    params: SamplingParams,
    ids: Tensor = FEW,
    exit_layer: int = 1,
    prompts: Sequence[list[int]] = PROMPTS,
    atol: float = 1e-5,
) -> None:
    drafter = Checked(on, ids, exit_layer, atol, folder)
    config = SpeculativeConfig(num_speculative_tokens=3, policy="fixed")
    engine = Engine(on, drafter, config, max_batch_size=3)
    completions = engine.generate(list(prompts), params)
    assert drafter.drafted >= 12
    assert all(len(completion.token_ids) == params.max_tokens for completion in completions)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SEEDED, PENALTIES])
def test_drafts_are_those_of_the_trained_layer(tmp_path: Path, params: SamplingParams) -> None:
    check(tmp_path, target("torch", "fp64"), params)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_token_and_a_later_exit(tmp_path: Path, family: str) -> None:
    check(tmp_path, target("torch", "fp64", family), SAMPLED, torch.arange(VOCAB), 2)


@needs_kernels
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_on_the_kernels(tmp_path: Path, params: SamplingParams) -> None:
    check(tmp_path, target("kernels", "fp32"), params, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_output_is_plain_decodings(dtype: str) -> None:
    """Bit for bit, through drafts of which some are accepted and some are not; by itself and where a
    lookup drafts in other rounds."""
    on = target("kernels", dtype)
    layer = ExitLayer(head_of(on, torch.arange(VOCAB)), 3, on.max_context)
    alone = LayerSkipDrafter(on, 1, layer=layer)
    config = SpeculativeConfig(num_speculative_tokens=4, policy="fixed")
    for drafter in (alone, CascadeDrafter([NgramDrafter(1, 3), alone])):
        engine = Engine(on, drafter, config, max_batch_size=3)
        for params in (GREEDY, SEEDED):
            accepted(engine, PROMPTS, params)
        del engine


def test_enumerated() -> None:
    toy = LayeredToyModel(3, sharpness=1.0)
    layer = ExitLayer(head_of(toy, torch.arange(3)), 2, toy.max_context)
    drafter = LayerSkipDrafter(toy, 1, layer=layer)
    assert check_drafter(drafter, toy, prompts=[(2, 1, 0)]).cases > 0


def keys_of(layer: ExitLayer, row: int) -> Tensor:
    """The keys that a row's cache holds."""
    own = layer.cache.layers[0]
    keys: Tensor = own.keys[0][row, :, : own.length(row)]
    return keys


def run_round(on: CausalLM, drafter: LayerSkipDrafter, own: Any, request: Request) -> Request:
    """One round of which the first drafted token alone is accepted; the request after it."""
    draft = drafter.propose([request], [Plan(4)], Randomness())[0]
    assert draft.hidden is not None
    batch = Batch.after(
        own,
        [0],
        [[request.token_ids[-1], *draft.token_ids]],
        layers=range(drafter.shared_layers, on.num_layers),
        hidden_in=draft.hidden.unsqueeze(0),
        hidden_layers=drafter.hidden_layers,
    )
    output = on.forward(batch, own)
    verdict = Verdict.of(draft, 0, 11)
    own.keep(0, len(request), verdict.path)
    longer = replace(request, token_ids=[*request.token_ids, *verdict.token_ids])
    drafter.observe([longer], [draft], [verdict], output)
    return longer


@pytest.mark.parametrize("length", [2, 6, LARGEST_SHARED_CATCH_UP * 2])
def test_after_rounds_the_cache_holds_committed_tokens_alone(length: int) -> None:
    """It equals that of a drafter which has seen the text as a prompt."""
    on = target("torch", "fp64")
    caches = []
    texts = [list(range(length))]
    for _ in range(2):
        head = head_of(on, FEW)
        layer = ExitLayer(head, 1, on.max_context)
        drafter, own = LayerSkipDrafter(on, 1, layer=layer), on.new_cache(1, 64)
        drafter.attach(own)
        request = Request(0, list(texts[-1]), 1, SamplingParams(temperature=0), seed=0, row=0)
        batch = Batch.after(own, [0], [request.token_ids[:-1]], hidden_layers=(1,))
        drafter.observe_prefill(request, 0, on.forward(batch, own))
        if len(texts) == 1:
            for _ in range(3):
                request = run_round(on, drafter, own, request)
            texts.append(request.token_ids)
        # What is missing is run, with one drafted token.
        assert len(drafter.propose([request], [Plan(1)], Randomness())[0]) == 1
        caches.append(keys_of(layer, 0))
    assert len(texts[-1]) == length + 6
    assert caches[0].shape[1] == length + 6
    torch.testing.assert_close(caches[0], caches[1])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("target"), "llama")


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"exit_layer": 2}, "belongs after layer 1"),
        ({"num_target_layers": 7}, {}, "number of layers of 7, and"),
        ({"vocab_size": 62}, {}, "vocabulary of 62, and"),
        ({"hidden_size": 30}, {}, "hidden size of 30, and"),
        ({"exit_layer": 3}, {}, "exit_layer"),
        ({"draft_vocab_size": 62}, {}, "draft_vocab_size"),
        ({"draft_vocab_size": VOCAB}, {}, "d2t"),
        ({"intermediate_size": 10}, {}, "of shape"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, stored: str, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    on = target("torch", "fp64")
    folder = write(tmp_path, on, FEW)
    config = {**config_of(on, len(FEW)), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ForerunError, match=message):
        load(stored, {"method": "layer_skip", "model": str(folder), **options})


def test_a_model_is_no_layer(stored: str) -> None:
    with pytest.raises(CheckpointError, match="has no exit_layer"):
        load(stored, {"method": "layer_skip", "model": stored})


def test_a_cascade_takes_it_beside_methods_without_a_model(tmp_path: Path, stored: str) -> None:
    folder = write(tmp_path, target("torch", "fp64"), FEW)
    members = {"method": "cascade", "cascade": ("ngram", "layer_skip"), "model": str(folder)}
    engine = load(stored, {**members, "policy": "fixed"}, dtype="fp32")
    assert isinstance(engine.drafter, CascadeDrafter)
    member = engine.drafter.members[1]
    assert isinstance(member, LayerSkipDrafter)
    assert member.layer is not None
    assert load(stored, {**members, "model": None, "exit_layer": 1}).drafter is not None
