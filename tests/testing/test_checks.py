"""The checks for authors of methods: shipped methods pass, defects are caught and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.contracts import DrafterSetup
from forerun.core import (
    NO_DRAFT,
    Draft,
    Drawing,
    Exactness,
    Hints,
    Plan,
    Request,
    Verdict,
)
from forerun.drafters import DRAFTERS as METHODS
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError, ExactnessError
from forerun.randomness import Purpose, Randomness
from forerun.sampling import Prefix, draw_siblings
from forerun.testing import ToyModel, TreeDrafter, check_drafter, check_verifier
from forerun.testing.drafter_check import PROMPTS
from forerun.testing.verifier_check import default_cases
from forerun.verification import RULES
from forerun.verification.token import TokenRule
from tests.helpers.covering import covering
from tests.helpers.layered import LayeredToyModel
from tests.matrix import DRAFTERS

TARGET = ToyModel(3, sharpness=1.0)
LAYERED = LayeredToyModel(3, sharpness=1.0)
DRAFT = ToyModel(3, sharpness=1.0, noise=0.8)


class BigramDrafter(BaseDrafter):
    """A third party's method: draws in proportion to the counts of token pairs in the text."""

    name = "bigram"
    drawings = frozenset(Drawing)

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @classmethod
    def build(cls, setup: DrafterSetup) -> BigramDrafter:
        return cls(setup.target.vocab_size)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        return [self._chain(*pair, randomness) for pair in zip(requests, plans, strict=True)]

    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        assert self.vocab_size is not None
        counts = torch.ones(self.vocab_size, self.vocab_size, dtype=torch.float64)
        for before, after in zip(request.token_ids, request.token_ids[1:], strict=False):
            counts[before, after] += 1.0
        tokens: list[int] = []
        rows: list[Tensor] = []
        for node in range(plan.num_tokens):
            logits = counts[(*request.token_ids, *tokens)[-1]].log()[None]
            prefix = Prefix(request, tuple(tokens))
            [child] = draw_siblings(logits, [prefix], plan.drawing, [[node]], randomness)
            if not child.token_ids:
                break
            tokens += child.token_ids
            if child.rows is not None:
                rows.append(child.rows[0])
        if not tokens:
            return NO_DRAFT
        return Draft.chain(tokens, torch.stack(rows) if rows else None)


def test_a_third_partys_drafter_is_proven() -> None:
    result = check_drafter(BigramDrafter(3), TARGET)
    assert result.largest_deviation < 1e-12
    assert set(result.kinds) == {"sampled", "greedy"}


# Cases that take seconds. Both kinds of draft are among the others; views of the target are enumerated
# with layers left out.
SLOW = {"cascade", "eagle3", "layer_skip", "medusa", "self_sparse"}


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(METHODS)],
)
def test_shipped_drafters(method: str) -> None:
    case = next(case for case in DRAFTERS if case.name == method)
    assert not isinstance(case.hints.prediction, str)
    hints = Hints(prediction=tuple(token % 3 for token in case.hints.prediction))
    # The first prompt alone, behind which something is looked up too; the default ones are tested above.
    drafter = case.drafter_for(LAYERED, DRAFT)
    result = check_drafter(drafter, LAYERED, prompts=PROMPTS[:1], hints=hints)
    assert result.cases > 0
    assert result.largest_deviation < 1e-12


@pytest.mark.parametrize(
    ("branches", "replacement"),
    [pytest.param((2, 1), False, marks=pytest.mark.slow), ((2,), False), ((2,), True)],
)
def test_drawn_trees(branches: tuple[int, ...], replacement: bool) -> None:
    drafter = TreeDrafter(DRAFT, branches, replacement=replacement)
    assert check_drafter(drafter, TARGET).largest_deviation < 1e-12


APPROXIMATE = {name for name, rule in RULES.items() if rule.exactness is Exactness.APPROXIMATE}


@pytest.mark.parametrize(
    ("name", "form"),
    covering(sorted({*RULES} - APPROXIMATE - {"standard"}), ["torch", "compiled"]),
    indirect=["form"],
)
def test_shipped_rules(name: str, form: str) -> None:
    result = check_verifier(RULES[name]())
    assert result.cases > 10
    assert result.largest_deviation < 1e-12


def test_default_cases_are_those_of_both_vocabularies() -> None:
    assert len([*default_cases()]) == len([*default_cases((3,)), *default_cases((4,))])


def test_standard_is_another_name_of_token() -> None:
    assert RULES["standard"] is RULES["token"]


@pytest.mark.parametrize("name", sorted(APPROXIMATE))
def test_shipped_approximations_are_caught(name: str) -> None:
    with pytest.raises(ExactnessError, match=f"rule '{name}' changes the distribution"):
        check_verifier(RULES[name](), FEW_CASES)


class Repeats(BigramDrafter):
    """Draws all tokens of a draft with the same number."""

    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        class Stuck(Randomness):
            def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
                return randomness.uniform(seed, position, purpose)

        return super()._chain(request, plan, Stuck())


class AcrossRounds(BigramDrafter):
    """Keys its draws by the node alone: every round draws with the same numbers."""

    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        class Forgetful(Randomness):
            def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
                return randomness.uniform(seed, 0, purpose, node)

        return super()._chain(request, plan, Forgetful())


class TooFar(BigramDrafter):
    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        return super()._chain(request, Plan(plan.num_tokens + 1, plan.drawing), randomness)


class Unnormalized(BigramDrafter):
    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        draft = super()._chain(request, plan, randomness)
        if draft.probs is None:
            return draft
        assert isinstance(draft.probs, Tensor)
        return Draft(draft.tree, draft.token_ids, draft.probs * 1.01)


class Outside(BigramDrafter):
    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        return Draft.chain([3])


class Silent(BigramDrafter):
    def _chain(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        return NO_DRAFT


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Repeats, "changes the distribution"),
        (AcrossRounds, "drawn twice"),
        (TooFar, "the plan allows 2"),
        (Unnormalized, "does not sum to 1"),
        (Outside, "the vocabulary has 3 tokens"),
        (Silent, "proposed nothing"),
    ],
)
def test_the_defect_of_a_drafter_is_named(kind: type[BigramDrafter], message: str) -> None:
    with pytest.raises(ExactnessError, match=message):
        check_drafter(kind(3), TARGET)


def test_too_much_to_enumerate_is_refused() -> None:
    with pytest.raises(ConfigError, match="smaller vocabulary"):
        check_drafter(BigramDrafter(100), ToyModel(100))


def test_a_rule_that_refuses_everything() -> None:
    class Refuses(TokenRule):
        def decide(self, draft: Draft, target_probs: Tensor):  # type: ignore[no-untyped-def]
            raise ConfigError("not this one")

    with pytest.raises(ExactnessError, match="refused"):
        check_verifier(Refuses())


def test_not_a_number_is_a_deviation() -> None:
    class Broken(TokenRule):
        def decide(self, draft: Draft, target_probs: Tensor):  # type: ignore[no-untyped-def]
            return super().decide(draft, target_probs * torch.nan)

    with pytest.raises(ExactnessError):
        check_verifier(Broken(), FEW_CASES)


class Bare:
    """A rule without a `decide`, whose verdicts a test may corrupt."""

    name, exactness = "bare", Exactness.DISTRIBUTIONAL

    def __init__(self, corrupt: Callable[[Verdict], Verdict] = lambda verdict: verdict) -> None:
        self.corrupt = corrupt

    def verify(self, *args):  # type: ignore[no-untyped-def]
        return [self.corrupt(verdict) for verdict in TokenRule().verify(*args)]


FEW_CASES = [case for case in default_cases((3,)) if len(case.drafts[0][1]) <= 2]


def test_a_rule_without_a_decision_is_enumerated_by_running() -> None:
    assert check_verifier(Bare(), FEW_CASES).cases == len(FEW_CASES)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda verdict: Verdict((), (), ()),
        lambda verdict: replace(verdict, path=tuple(node + 1 for node in verdict.path)),
        lambda verdict: replace(verdict, token_ids=(*verdict.token_ids, 0)),
    ],
    ids=["nothing", "another path", "one too many"],
)
def test_invalid_verdicts_are_caught(corrupt: Callable[[Verdict], Verdict]) -> None:
    with pytest.raises(ExactnessError, match=r"path"):
        check_verifier(Bare(corrupt), FEW_CASES)


def test_a_bound_of_nan_passes_nothing() -> None:
    with pytest.raises(ExactnessError):
        check_verifier(TokenRule(), FEW_CASES, bound=float("nan"))


@pytest.mark.parametrize("rule", [None, object(), 3])
def test_objects_that_are_not_rules(rule: object) -> None:
    with pytest.raises(ConfigError, match="is not a rule"):
        check_verifier(rule)  # type: ignore[arg-type]


def test_cases_must_not_be_empty() -> None:
    with pytest.raises(ConfigError, match="list of cases is empty"):
        check_verifier(TokenRule(), [])


@pytest.mark.parametrize("drafter", [None, object(), BigramDrafter])
def test_objects_that_are_not_drafters(drafter: object) -> None:
    with pytest.raises(ConfigError, match="is not a drafter"):
        check_drafter(drafter, TARGET)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [{"num_tokens": 0}, {"num_tokens": -1}, {"prompts": []}, {"samplers": []},
     {"prompts": [()]}, {"prompts": [(1, 7)]}],
)  # fmt: skip
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_drafter(BigramDrafter(3), TARGET, **arguments)
