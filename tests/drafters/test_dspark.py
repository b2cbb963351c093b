"""What the DSpark drafter proposes is what straight-line code says of the same head, in every layout, for
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
from forerun.drafters.dspark import DSparkDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.errors import IncompatibleDraftError
from forerun.heads.dspark import DSparkHead
from forerun.heads.files import HeadFiles
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.trees.growth import grow, start
from tests.helpers.covering import covering
from tests.helpers.dspark_heads import VARIANTS, Made, Reference, write
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


def head_of(folder: Path, made: Made, on: CausalLM, layout: str = "deepspec") -> DSparkHead:
    return DSparkHead.open(on, HeadFiles.open(write(folder, made, layout)))


class Checked(Compared, DSparkDrafter):
    """Drafts with a head and its reference."""

    def __init__(
        self, made: Made, head: DSparkHead, on: CausalLM, atol: float, least: float = 0.0
    ) -> None:
        super().__init__(head, on.vocab_size, 3, on.max_context, least_confidence=least)
        self.reference, self.atol, self.least = Reference(made, on), atol, least
        self.lengths = []

    def expected(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        reference = self.reference
        hidden = reference.block(request.token_ids)
        growth, reached = start(request, plan.cut(reference.made.drafted)), 1.0
        for level in range(reference.made.drafted):
            paths = [growth._tokens_to(node) for node in growth.frontier]
            if not paths:
                break
            newest = [path[-1] if path else request.token_ids[-1] for path in paths]
            if self.least and reference.made.confidence:
                reached *= reference.confidence(hidden[level], newest[0])
                if reached < self.least:
                    break
            rows = [reference.row(hidden[level], token) for token in newest]
            grow([growth], torch.stack(rows), randomness)
        return growth.finish()


def check(
    folder: Path,
    made: Made,
    on: CausalLM,
    params: SamplingParams,
    layout: str = "deepspec",
    prompts: Sequence[list[int]] = PROMPTS[:1],
    atol: float = 1e-5,
    least: float = 0.0,
    **config: Any,
) -> list[tuple[int, int]]:
    """Generate with a head, every draft compared with the reference's; their lengths, and those planned."""
    drafter = Checked(made, head_of(folder, made, on, layout), on, atol, least)
    generate(on, drafter, prompts, params, **config)
    return drafter.lengths


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_drafts_what_its_description_says(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("torch", "fp64"), SAMPLED)


@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_head_runs_on_the_kernels(tmp_path: Path, variant: str) -> None:
    check(tmp_path, VARIANTS[variant], target("kernels", "fp32"), SAMPLED, atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "made"),
    [
        ("deepspec", Made()),
        ("speculators", Made(from_anchor=False)),
        ("speculators", Made(draft_vocab=37, own_head=True, own_embedding=True)),
        ("dflash", Made(from_anchor=False, rank=0, confidence="")),
        ("dflash", Made(from_anchor=False, rank=0, confidence="", causal=True)),
    ],
)
def test_published_layouts(tmp_path: Path, layout: str, made: Made) -> None:
    check(tmp_path, made, target("torch", "fp64"), GREEDY, layout)


@pytest.mark.parametrize(
    ("params", "tree"), covering([GREEDY, SAMPLED, SEEDED, PENALTIES], [None, "auto", SHAPE])
)
def test_chains_and_trees_in_ragged_batches(
    tmp_path: Path, params: SamplingParams, tree: Any
) -> None:
    check(tmp_path, Made(), target("torch", "fp64"), params, prompts=PROMPTS, tree=tree)


@needs_kernels
def test_ragged_batches_on_the_kernels(tmp_path: Path) -> None:
    on = target("kernels", "fp32")
    check(tmp_path, Made(), on, SEEDED, prompts=PROMPTS, atol=1e-4, tree=SHAPE)


@pytest.mark.parametrize("backend", ["torch", pytest.param("kernels", marks=needs_kernels)])
def test_to_the_end_of_the_context(tmp_path: Path, backend: str) -> None:
    """Where the block is longer than what is left."""
    on = target(backend, "fp32")
    prompt = [(7 * at) % 61 for at in range(on.max_context - 14)]
    params = replace(GREEDY, max_tokens=14)
    check(tmp_path, Made(block=8), on, params, prompts=[prompt], atol=1e-4)


@pytest.mark.parametrize(
    ("params", "variant"),
    covering([GREEDY, SAMPLED], ["plain", "confidence-of-states", "no-confidence"]),
)
def test_chains_end_where_the_head_is_not_confident(
    tmp_path: Path, params: SamplingParams, variant: str
) -> None:
    """By what was drafted before alone: the reference decides before it draws."""
    made, on = VARIANTS[variant], target("torch", "fp64")
    lengths = check(tmp_path, made, on, params, prompts=PROMPTS, least=0.4)
    ended = [length for length, planned in lengths if length < planned]
    assert bool(ended) == bool(made.confidence)
    assert len(ended) < len(lengths)


def test_a_row_goes_on_from_what_it_shares_with_a_prompt(tmp_path: Path) -> None:
    """Slots belong to tokens alone, so that those of the shared text are those of a new one."""
    made, on = VARIANTS["plain"], target("torch", "fp64")
    drafter = Checked(made, head_of(tmp_path, made, on), on, 1e-5)
    engine = Engine(on, drafter, SpeculativeConfig(num_speculative_tokens=3, policy="fixed"))
    first = engine.generate([PROMPTS[0]], GREEDY)[0]
    later = [*PROMPTS[0], *first.token_ids[:-3], 8, 1]
    again = engine.generate([later], GREEDY)[0]
    assert again.stats.num_cached_tokens > len(PROMPTS[0])


def test_a_long_prompt_runs_in_chunks(tmp_path: Path) -> None:
    prompt = [(7 * at) % 61 for at in range(40)]
    check(tmp_path, Made(), target("torch", "fp64"), GREEDY, prompts=[prompt, PROMPTS[0]])


@needs_kernels
def test_int8_drafts_nearly_what_the_reference_does(tmp_path: Path) -> None:
    made, on = VARIANTS["plain"], target("kernels", "int8")
    head, reference, text = head_of(tmp_path, made, on), Reference(made, on), PROMPTS[2]
    cache = head.new_cache(1, 64)
    head.run_context(cache, [0], [reference.states(text[:-1])])
    hidden = head.run_block(cache, [0], [text[-1]])[0]
    found = head.base_logits(hidden)
    head.add_markov(found, [text[-1], 1, 2, 3])
    block = zip(reference.block(text), [text[-1], 1, 2, 3], strict=True)
    expected = torch.stack([reference.row(state, before) for state, before in block])
    spread = float(expected.std())
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15 * spread)


def test_the_head_of_another_target_is_refused(tmp_path: Path) -> None:
    for made in (Made(vocab=60, draft_vocab=60), Made(hidden=20)):
        with pytest.raises(IncompatibleDraftError, match="was trained for a target with a"):
            head_of(tmp_path, made, target("torch", "fp64"))
