"""`check_drafter`: proves a drafter exact by enumeration, in one line of a test suite."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from forerun.contracts import Drafter
from forerun.core import (
    MOST_NODES,
    NO_HINTS,
    Draft,
    Drawing,
    Hints,
    PlainReason,
    Plan,
    Request,
    Tree,
)
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.settings import check_drafter as check_compatible
from forerun.errors import ConfigError, ExactnessError
from forerun.models.running import prefill_chunks
from forerun.params import SamplingParams
from forerun.randomness import Key, Purpose, Randomness
from forerun.testing.enumeration import WarpedRows, by_decision, outcomes
from forerun.testing.toy import ToyModel
from forerun.testing.verifier_check import BOUND, Case, Enumeration, compare
from forerun.trees.search import AUTO, plan_tree
from forerun.verification.decision import DecisionRule
from forerun.verification.token import TokenRule
from forerun.verification.traversal import BlockRule, TraversalRule

SAMPLERS = (
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=2),
    SamplingParams(top_p=0.8, presence_penalty=0.5, repetition_penalty=1.3),
)
PROMPTS = ((1, 2, 0, 1, 2, 0, 1), (2, 1))
# Most whole sequences of an enumeration.
_MOST_SEQUENCES = 4096
_SUM_TOLERANCE = 1e-6
_SHAPE = Tree((-1, -1, 0))
# The attributes of a drafter that the contract names.
_DECLARED = (
    *("name", "exactness", "drawings", "draws_trees", "takes_trees"),
    *("reads_predictions", "shared_layers"),
    *("hidden_layers", "vocab_size", "rows", "options"),
    *("attach", "propose", "observe", "observe_prefill", "confidence", "release", "clear_row"),
)


def check_drafter(
    drafter: Drafter,
    target: ToyModel,
    *,
    num_tokens: int = 2,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    samplers: Sequence[SamplingParams] = SAMPLERS,
    hints: Hints = NO_HINTS,
) -> Enumeration:
    """Prove that a drafter's proposals leave the target's distribution as it is.

    All proposals are enumerated from outside, by running the drafter with every number that it may
    draw, so it needs no code for this. Whole sequences are then compared with the target's
    distribution: under the token rule, for drawn drafts under traversal too, and for drawn chains
    under the block rule. In an engine with a ragged batch, the drafter must also lead to plain
    decoding's tokens, greedily and by seed, and must not draw a number twice. A drafter that proposes
    nothing before it has observed verifications is enumerated after them.

    Args:
        drafter: a drafter with two rows, over the target's vocabulary.
        target: a toy model with a handful of tokens.
        num_tokens: drafted tokens; distributions are over sequences one token longer.
        prompts: prompts to draft after, as token ids.
        samplers: sampling parameters to draft with; greedy decoding is always checked too.
        hints: hints of every request, such as token ids of a predicted output.

    Raises:
        ExactnessError: for an invalid draft, a number drawn twice, or a changed distribution.
        ConfigError: for a target and drafter that do not match, or a vocabulary that is too large.
    """
    _check_arguments(drafter, target, num_tokens, prompts, samplers)
    check_compatible(drafter, target, SpeculativeConfig(), 1)
    if target.vocab_size ** (num_tokens + 1) > _MOST_SEQUENCES:
        raise ConfigError(
            f"{target.vocab_size} tokens and drafts of {num_tokens} give too many sequences to "
            f"enumerate (allowed: {_MOST_SEQUENCES}); take a smaller vocabulary or shorter drafts."
        )
    settings = [
        _Setting(drafter, target, tuple(prompt), params, hints, plan)
        for prompt in prompts
        for params in (*samplers, replace(samplers[0], temperature=0.0))
        for plan in _plans(drafter, num_tokens)
    ]
    total = sum(map(_enumerate, settings), Enumeration())
    _check_in_engine(drafter, target, prompts, samplers, hints, num_tokens)
    if not total.cases:
        total = sum(map(_enumerate, settings), Enumeration())
    if not total.cases and drafter.drawings != {Drawing.COUPLED}:
        raise ExactnessError(
            f"{drafter.name} proposed nothing after any of the prompts; "
            "give prompts after which it proposes tokens."
        )
    return total


def _check_arguments(
    drafter: Drafter,
    target: ToyModel,
    num_tokens: int,
    prompts: Sequence[Sequence[int]],
    samplers: Sequence[SamplingParams],
) -> None:
    missing = [name for name in _DECLARED if not hasattr(drafter, name)]
    if missing or isinstance(drafter, type):
        raise ConfigError(
            f"{drafter!r} is not a drafter; give an object that has {', '.join(missing or _DECLARED)}."
        )
    if num_tokens < 1 or not prompts or not samplers:
        raise ConfigError("give at least one token to draft, one prompt and one sampler.")
    for prompt in prompts:
        if not prompt or any(not 0 <= token < target.vocab_size for token in prompt):
            raise ConfigError(
                f"the prompt {list(prompt)} is empty or leaves the vocabulary; "
                f"{target.name} has tokens 0 to {target.vocab_size - 1}."
            )


@dataclass(frozen=True)
class _Setting:
    """A drafter, its target, and the request and plan that it drafts for."""

    drafter: Drafter
    target: ToyModel
    prompt: tuple[int, ...]
    params: SamplingParams
    hints: Hints
    plan: Plan

    def request(self) -> Request:
        prompt, size = list(self.prompt), len(self.prompt)
        return Request(0, prompt, size, self.params, seed=0, row=0, hints=self.hints)

    def __str__(self) -> str:
        kind = "chain" if self.plan.is_chain else "tree"
        how = f"{kind}, {self.plan.drawing}, after {list(self.prompt)}, {self.params}"
        return f"{self.drafter.name} ({how})"


def _plans(drafter: Drafter, num_tokens: int) -> Iterator[Plan]:
    """Plans for every drawing: a chain and, for drafters that take trees, trees of three nodes."""
    for drawing in sorted(drafter.drawings - {Drawing.COUPLED}):
        yield Plan(num_tokens, drawing)
        if drafter.takes_trees:
            yield plan_tree(_SHAPE, len(_SHAPE), num_tokens, drawing)
            if drawing is Drawing.GREEDY:
                yield plan_tree(AUTO, len(_SHAPE), num_tokens, drawing)


def _enumerate(setting: _Setting) -> Enumeration:
    """Compare one round followed by plain decoding with the target's own distribution."""
    request, committed = setting.request(), len(setting.prompt) - 1
    # The cache holds all but the newest token, as in an engine. Trees have slots of their own.
    slots = setting.plan.num_tokens if setting.plan.is_chain else MOST_NODES
    cache = setting.target.new_cache(1, len(setting.prompt) + slots)
    layers, prompt = setting.drafter.hidden_layers, request.token_ids[:committed]
    for batch, output in prefill_chunks(setting.target, cache, [0], [prompt], layers):
        if layers:
            setting.drafter.observe_prefill(request, batch.positions[0][0], output)
    setting.drafter.attach(cache)

    def propose(randomness: Randomness) -> Draft:
        try:
            return setting.drafter.propose([request], [setting.plan], randomness)[0]
        finally:
            cache.trim(0, committed)

    drafts = tuple(outcomes(propose, _sign))
    setting.drafter.release(request)
    for _, draft in drafts:
        _check_draft(setting, draft)
    total = Enumeration()
    if not any(len(draft) for _, draft in drafts):
        return total
    rows = WarpedRows(setting.target, request)
    case = Case(str(setting), rows, drafts, setting.plan.num_tokens + 1)
    for rule in _rules_for(drafts):
        result = compare(by_decision(rule.decide), case)
        if not result.largest_deviation <= BOUND:
            raise ExactnessError(
                f"{setting} changes the distribution under rule {rule.name!r}: a sequence of "
                f"{case.length} tokens is off by {result.largest_deviation:.1e} (allowed: {BOUND:.0e})."
            )
        total += replace(result, kinds=(str(setting.plan.drawing),))
    return total


def _sign(draft: Draft) -> tuple[object, ...]:
    rows = draft.probs
    # The text of a tensor is rounded.
    values = rows.tolist() if isinstance(rows, Tensor) else rows
    return draft.token_ids, draft.tree.parents, repr(values)


def _rules_for(drafts: Sequence[tuple[float, Draft]]) -> Iterator[DecisionRule]:
    yield TokenRule()
    # A draft without nodes has no rows; every rule takes it.
    if all(draft.probs is not None or not len(draft) for _, draft in drafts):
        yield TraversalRule()
        if all(draft.tree.is_chain for _, draft in drafts):
            yield BlockRule()


def _check_draft(setting: _Setting, draft: Draft) -> None:
    vocab_size = setting.target.vocab_size
    if draft.tree.depth > setting.plan.num_tokens:
        raise ExactnessError(
            f"{setting} proposed {draft.tree.depth} tokens along a path; "
            f"the plan allows {setting.plan.num_tokens}."
        )
    if any(not 0 <= token < vocab_size for token in draft.token_ids):
        raise ExactnessError(
            f"{setting} proposed {list(draft.token_ids)}; the vocabulary has {vocab_size} tokens."
        )
    rows = draft.dense_probs(vocab_size)
    if rows is None:
        return
    if rows.shape != (len(draft), vocab_size):
        raise ExactnessError(
            f"{setting} recorded rows of shape {list(rows.shape)}; "
            f"with a row for each node it is [{len(draft)}, {vocab_size}]."
        )
    if bool((rows < 0).any()) or bool(((rows.sum(-1) - 1.0).abs() > _SUM_TOLERANCE).any()):
        raise ExactnessError(f"{setting} recorded a row that does not sum to 1 or is negative.")


def _check_in_engine(
    drafter: Drafter,
    target: ToyModel,
    prompts: Sequence[Sequence[int]],
    samplers: Sequence[SamplingParams],
    hints: Hints,
    num_tokens: int,
) -> None:
    """Compare greedy and seeded output with the plain loop, and refuse random keys drawn twice."""
    rows = min(2, drafter.rows or 2)
    for params in [*samplers, *(replace(sampler, temperature=0.0) for sampler in samplers)]:
        for rule, tree in itertools.product(
            ("auto", "token"), (None, AUTO) if drafter.takes_trees else (None,)
        ):
            keys: list[Key] = []
            config = SpeculativeConfig(
                num_speculative_tokens=num_tokens, rejection_sample_method=rule, policy="fixed"
            )
            if tree is not None:
                config = replace(config, tree=tree, num_tree_nodes=len(_SHAPE))
            seeded = [replace(params, max_tokens=12, seed=seed) for seed in range(len(prompts))]
            # A drafter serves one engine at a time. Without a name, the engine is freed before the
            # next one is built.
            _compare_with_plain(
                Engine(
                    target, drafter, config, max_batch_size=rows, randomness=Randomness(keys.append)
                ),
                [list(prompt) for prompt in prompts],
                seeded,
                hints,
            )
            _check_keys(drafter, keys)


def _compare_with_plain(
    engine: Engine, prompts: list[list[int]], seeded: list[SamplingParams], hints: Hints
) -> None:
    assert engine.drafter is not None
    completions = engine.generate(prompts, seeded, hints=hints)
    if PlainReason.FAILED in engine.stats.num_plain_rounds_by_reason:
        raise ExactnessError(
            f"{engine.drafter.name} raised an error in the engine; the log's warning has it."
        )
    if not (seeded[0].greedy or engine.config.rejection_sample_method == "auto"):
        return
    for prompt, params, completion in zip(prompts, seeded, completions, strict=True):
        plain = tuple(event.token_id for event in engine.stream_plain(prompt, params))
        if plain != completion.token_ids:
            raise ExactnessError(
                f"with {engine.drafter.name}, {params} emits {list(completion.token_ids)} after "
                f"{prompt}; plain decoding emits {list(plain)}."
            )


def _check_keys(drafter: Drafter, keys: list[Key]) -> None:
    # Rounds and plain decoding share the noise of a seed on purpose.
    drawn = [key for key in keys if key.purpose in (Purpose.DRAFT, Purpose.ACCEPT)]
    twice = [key for key, count in Counter(drawn).items() if count > 1]
    if twice:
        raise ExactnessError(
            f"with {drafter.name}, {len(twice)} random numbers are drawn twice, {min(twice)} first; "
            "key every draw by the committed length and the node."
        )
