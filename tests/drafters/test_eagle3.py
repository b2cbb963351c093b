"""What the EAGLE drafter proposes is what straight-line code says of the same head, in every layout, for
chains and trees, however they are drawn, in ragged batches and through rollbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.contracts import CausalLM
from forerun.core import Draft, Plan, Request
from forerun.drafters.eagle3 import Eagle3Drafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.heads.eagle3 import Eagle3Head
from forerun.heads.files import HeadFiles
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.trees.growth import grow, start
from tests.helpers.covering import covering
from tests.helpers.eagle_heads import VARIANTS, Made, Reference, write
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


def head_of(folder: Path, made: Made, on: CausalLM, layout: str) -> Eagle3Head:
    return Eagle3Head.open(on, HeadFiles.open(write(folder, made, layout)))


def layout_of(made: Made) -> str:
    return "eagle1" if made.regression else "vllm"


class Checked(Compared, Eagle3Drafter):
    """Drafts with a head and its reference."""

    def __init__(self, made: Made, head: Eagle3Head, on: CausalLM, atol: float) -> None:
        super().__init__(head, on.vocab_size, 3, on.max_context)
        self.reference, self.atol = Reference(made, on), atol
        self.lengths = []

    def expected(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        growth = start(request, plan.cut(self.capacity - len(request)))
        while growth.frontier:
            rows = []
            for node in growth.frontier:
                drafted = growth._tokens_to(node)
                own = self.reference.chain(request.token_ids, drafted)[-1]
                row = own.new_full((self.reference.made.vocab,), -torch.inf)
                row[self.reference.ids()] = own
                rows.append(row)
            grow([growth], torch.stack(rows), randomness)
        return growth.finish()


def check(
    folder: Path,
    made: Made,
    on: CausalLM,
    params: SamplingParams,
    layout: str = "",
    prompts: Sequence[list[int]] = PROMPTS[:1],
    atol: float = 1e-5,
    **config: Any,
) -> None:
    """Generate with a head, every draft compared with the reference's."""
    head = head_of(folder, made, on, layout or layout_of(made))
    drafter = Checked(made, head, on, atol)
    generate(on, drafter, prompts, params, **config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_drafts_what_its_description_says(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("torch", "fp64"), SAMPLED)


@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_runs_on_the_kernels(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("kernels", "fp32"), SAMPLED, atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "variant"),
    covering(["specforge", "vllm", "modelopt", "speculators"], ["plain", "eagle3.1"]),
)
def test_published_layouts(tmp_path: Path, layout: str, variant: str) -> None:
    # The output of a layer, as some count, is never the embedding.
    made = replace(VARIANTS[variant], ids=(1, 2, 3))
    check(tmp_path, made, target("torch", "fp64"), GREEDY, layout)


@pytest.mark.parametrize(
    ("params", "tree"), covering([GREEDY, SAMPLED, SEEDED, PENALTIES], [None, "auto", SHAPE])
)
def test_chains_and_trees_in_ragged_batches(
    tmp_path: Path, params: SamplingParams, tree: Any
) -> None:
    check(tmp_path, Made(), target("torch", "fp64"), params, prompts=PROMPTS, tree=tree)


def test_a_row_goes_on_from_what_it_shares_with_a_prompt(tmp_path: Path) -> None:
    """Only the slot before the first difference is that of the old text: drafts are those of the
    reference where nothing differs there."""
    made, on = VARIANTS["plain"], target("torch", "fp64")
    drafter = Checked(made, head_of(tmp_path, made, on, "vllm"), on, 1e-5)
    engine = Engine(on, drafter, SpeculativeConfig(num_speculative_tokens=3, policy="fixed"))
    first = engine.generate([PROMPTS[0]], GREEDY)[0]
    held = drafter.features._rows[0].held
    later = [*PROMPTS[0], *first.token_ids, 8, 1]
    again = engine.generate([later], GREEDY)[0]
    assert again.stats.num_cached_tokens == len(PROMPTS[0]) + len(first.token_ids) - 1
    assert held > 10


def test_a_long_prompt_runs_in_chunks(tmp_path: Path) -> None:
    prompt = [(7 * at) % 61 for at in range(40)]
    check(tmp_path, Made(), target("torch", "fp64"), GREEDY, prompts=[prompt, PROMPTS[0]])


@needs_kernels
def test_int8_drafts_nearly_what_the_reference_does(tmp_path: Path) -> None:
    made, on = VARIANTS["eagle3.1"], target("kernels", "int8")
    head = head_of(tmp_path, made, on, "vllm")
    reference = Reference(made, on)
    text = PROMPTS[2]
    expected = reference.chain(text, [1, 2])
    cache, states = head.new_cache(1, 64), reference.states(text[:-1])
    read = head.run([0], [head.fuse(states[None])[0]], [text[1:]], cache)
    rows = [head.logits(read[0, -1])]
    for token in (1, 2):
        read = head.run([0], [read[0, -1:]], [[token]], cache)
        rows.append(head.logits(read[0, -1]))
    spread = float(expected.std())
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=0.12 * spread)
