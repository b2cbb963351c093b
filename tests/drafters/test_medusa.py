"""What the Medusa drafter proposes is what straight-line code says of the same heads, in every layout, for
chains and trees, however they are drawn, in ragged batches and through rollbacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Draft, Exactness, Plan, Request
from forerun.drafters.medusa import MedusaDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import ForerunError
from forerun.heads.files import HeadFiles
from forerun.heads.medusa import MedusaHead
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel
from forerun.trees.growth import grow, start
from forerun.trees.search import best_shape
from tests.helpers.covering import covering
from tests.helpers.head_checks import (
    GREEDY,
    PENALTIES,
    PROMPTS,
    SAMPLED,
    SEEDED,
    SHAPE,
    Compared,
    generate,
    target,
)
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.medusa_heads import VARIANTS, Made, Reference, write


class Checked(Compared, MedusaDrafter):
    """Drafts with heads and their reference."""

    def __init__(self, made: Made, head: MedusaHead, on: CausalLM, atol: float) -> None:
        super().__init__(head, on.vocab_size, 3, on.max_context)
        self.reference, self.atol = Reference(made, on), atol
        self.lengths = []

    def expected(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        rows = self.reference.rows(request.token_ids)
        growth = start(request, plan.cut(len(rows)))
        for row in rows:
            if growth.frontier:
                grow([growth], row.expand(len(growth.frontier), -1), randomness)
        return growth.finish()


def check(
    folder: Path,
    made: Made,
    on: CausalLM,
    params: SamplingParams,
    layout: str = "vllm",
    prompts: Sequence[list[int]] = PROMPTS[:1],
    atol: float = 2e-6,
    form: str = "model.safetensors",
    **config: Any,
) -> None:
    """Generate with heads, every draft compared with the reference's."""
    files = HeadFiles.open(write(folder, made, layout, form))
    drafter = Checked(made, MedusaHead.open(on, files), on, atol)
    generate(on, drafter, prompts, params, **config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_drafts_what_its_description_says(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("torch", "fp64"), SAMPLED)


@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_runs_on_the_kernels(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("kernels", "fp32"), SAMPLED, atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "form"),
    [
        ("medusa", "medusa_lm_head.pt"),
        ("medusa", "medusa_lm_head.safetensors"),
        ("tensorrt", "model.safetensors"),
        ("vllm", "model.safetensors"),
    ],
)
@pytest.mark.parametrize("variant", ["aliased", "lent"])
def test_published_layouts(tmp_path: Path, layout: str, form: str, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("torch", "fp64"), GREEDY, layout, form=form)


@pytest.mark.parametrize(
    ("layout", "variant"),
    covering(["vllm", "vllm-cut", "speculators"], ["few-tokens", "few-tokens-lent", "one-output"]),
)
def test_layouts_of_few_tokens(tmp_path: Path, layout: str, variant: str) -> None:
    """vLLM's token_map, in any order, and the offsets of the speculators library."""
    check(tmp_path, VARIANTS[variant], target("torch", "fp64"), SEEDED, layout)


@pytest.mark.parametrize(
    ("params", "tree"), covering([GREEDY, SAMPLED, SEEDED, PENALTIES], [None, "auto", SHAPE])
)
def test_chains_and_trees_in_ragged_batches(
    tmp_path: Path, params: SamplingParams, tree: Any
) -> None:
    check(tmp_path, Made(), target("torch", "fp64"), params, prompts=PROMPTS, tree=tree)


def test_drafts_are_as_long_as_there_are_heads(tmp_path: Path) -> None:
    on = target("torch", "fp64")
    files = HeadFiles.open(write(tmp_path, Made(heads=2), "vllm"))
    drafter = MedusaDrafter(MedusaHead.open(on, files), on.vocab_size, 1, on.max_context)
    lengths: list[int] = []
    engine = Engine(on, drafter, SpeculativeConfig(num_speculative_tokens=9, policy="fixed"))
    engine.watch_rounds(lambda done: lengths.extend(map(len, done.drafts)))
    engine.generate([PROMPTS[0]], GREEDY)
    assert max(lengths) == 2


def test_drawn_trees_have_the_best_shape_for_the_measured_acceptance(tmp_path: Path) -> None:
    on, table = target("torch", "fp64"), [[0.5, 0.3, 0.1], [0.9, 0.01, 0.0], [0.02, 0.01, 0.0]]
    folder = write(tmp_path, Made(heads=3), "vllm")
    (folder / "forerun.json").write_text(json.dumps({"acceptance_by_rank": table}))
    options: dict[str, Any] = {"tree": "auto", "num_tree_nodes": 5, "num_speculative_tokens": 3}
    setup = DrafterSetup(on, 1, 64, {}, lambda: on, head=HeadFiles.open(folder))
    engine = Engine(
        on,
        MedusaDrafter.build(setup),
        SpeculativeConfig(policy="fixed", **options),
        max_batch_size=1,
    )
    drafts: list[Draft] = []
    engine.watch_rounds(lambda done: drafts.extend(done.drafts))
    engine.generate([PROMPTS[0]], SamplingParams(max_tokens=12))
    # Nothing below the second level, where hardly anything is accepted.
    assert drafts[0].tree.parents == best_shape(table, 5, 3).shape.parents == (-1, -1, -1, 0, 1)
    assert drafts[0].probs is not None


@needs_kernels
def test_int8_drafts_nearly_what_the_reference_does(tmp_path: Path) -> None:
    made, on = VARIANTS["layers"], target("kernels", "int8")
    head = MedusaHead.open(on, HeadFiles.open(write(tmp_path, made, "vllm")))
    text = PROMPTS[2]
    expected = Reference(made, on).rows([*text, 0])
    drafter = MedusaDrafter(head, on.vocab_size, 1, on.max_context)
    engine = Engine(on, drafter, SpeculativeConfig(policy="fixed"))
    engine.generate([text], SamplingParams(max_tokens=1))
    [[state]] = [row.states for row in drafter.features._rows[:1]]
    rows = head.run(state, made.heads)[0]
    torch.testing.assert_close(rows, expected, rtol=0, atol=0.12 * float(expected.std()))


def test_typical_acceptance_is_marked_and_takes_its_trees(tmp_path: Path) -> None:
    on = target("torch", "fp64")
    files = HeadFiles.open(write(tmp_path, Made(), "vllm"))
    config = SpeculativeConfig(
        tree="auto",
        rejection_sample_method="typical",
        draft_sample_method="greedy",
        policy="fixed",
    )
    drafter = MedusaDrafter(MedusaHead.open(on, files), on.vocab_size, 1, on.max_context)
    engine = Engine(on, drafter, config)
    assert engine.exactness is Exactness.APPROXIMATE
    assert len(engine.generate([PROMPTS[0]], SAMPLED)[0].token_ids) == 12


def test_a_target_without_a_head_that_runs_alone_is_refused(tmp_path: Path) -> None:
    files = HeadFiles.open(write(tmp_path, Made(hidden=1, vocab=11, draft_vocab=11), "vllm"))
    with pytest.raises(ForerunError, match="no head to run apart"):
        MedusaHead.open(ToyModel(11), files)
