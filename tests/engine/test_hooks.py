"""Mask hooks: asked where plain decoding asks, failing where it fails, with nothing of ours in hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.core import FinishReason, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.testing.enumeration import RandomRows, drawn_drafts, ends_of
from forerun.verification import RULES, TargetRows
from forerun.verification.decision import DecisionRule
from tests.helpers.engines import GREEDY, Letters, engine
from tests.matrix import DRAFT, TARGET

pytestmark = pytest.mark.usefixtures("form")


def plainly(prompt: list[int], params: SamplingParams) -> tuple[tuple[int, ...], Exception | None]:
    stream = Engine(TARGET, tokenizer=Letters()).stream_plain(prompt, params)
    error = None
    try:
        for _ in stream:
            pass
    except ValueError as failure:
        error = failure
    return stream.completion.token_ids, error


@pytest.mark.parametrize("tree", [None, "auto"])
def test_a_hook_that_fails_off_the_path_of_a_seed_fails_nothing(tree: str | None) -> None:
    for seed in range(30):
        params = SamplingParams(seed=seed, max_tokens=8)
        expected = (1, 2, *plainly([1, 2], params)[0])

        def mask(committed: Sequence[int], drafted: Sequence[int]) -> None:
            text = (*committed, *drafted)
            if text != expected[: len(text)]:  # noqa: B023
                raise ValueError("off the path")

        config = SpeculativeConfig(num_speculative_tokens=3, tree=tree, policy="fixed")
        one = Engine(TARGET, DraftModelDrafter(DRAFT, 1, DRAFT.max_context), config)
        completion = one.generate([[1, 2]], replace(params, mask=mask))[0]
        assert (1, 2, *completion.token_ids) == expected


@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_what_was_accepted_before_a_hook_fails_is_kept(drafter: str) -> None:
    """Wherever it fails, the output is plain decoding's up to there."""
    for most in range(3, 12):

        def mask(committed: Sequence[int], drafted: Sequence[int]) -> None:
            if len(committed) + len(drafted) >= most:  # noqa: B023
                raise ValueError("far enough")

        for params in (GREEDY, SamplingParams(seed=4, max_tokens=20)):
            failing = replace(params, mask=mask)
            make = NgramDrafter() if drafter == "ngram" else DraftModelDrafter(DRAFT, 1, 512)
            one = Engine(TARGET, make, SpeculativeConfig(policy="fixed"), tokenizer=Letters())
            number = one.add([1, 2, 1], failing)
            while one.has_work:
                one.step()
            completion = one.completion(number)
            assert completion.finish_reason is FinishReason.ERROR
            assert isinstance(completion.error, ValueError)
            assert completion.token_ids == plainly([1, 2, 1], failing)[0]
            assert completion.text == Letters().decode(completion.token_ids)


def test_a_grammar_that_is_done_is_not_asked_behind_a_stop_string() -> None:
    text = Letters().decode(plainly([1, 2], GREEDY)[0])
    for end in range(2, 12):
        stop = text[end - 2 : end]
        finished = text.index(stop) + 2

        def mask(committed: Sequence[int], drafted: Sequence[int]) -> None:
            if len(committed) + len(drafted) - 2 >= finished:  # noqa: B023
                raise ValueError("the grammar is done")

        params = replace(GREEDY, stop=(stop,), mask=mask)
        completion = engine(rows=1, length=5).generate([[1, 2]], params)[0]
        assert completion.finish_reason is FinishReason.STOP
        assert completion.text == text[: finished - 2]


def test_hooks_get_copies() -> None:
    def mask(committed: Sequence[int], drafted: Sequence[int]) -> None:
        assert isinstance(committed, list)
        committed.clear()
        committed.append(0)

    params = SamplingParams(seed=2, max_tokens=10)
    completion = engine(rows=1).generate([[1, 2]], replace(params, mask=mask))[0]
    assert completion.token_ids == plainly([1, 2], params)[0]


FAILING = [(0,), (1, 0), (2, 2)]
"""Prefixes behind which the hook fails."""


def fails(committed: Sequence[int], drafted: Sequence[int]) -> None:
    if tuple(drafted) in FAILING:
        raise ValueError("no further")


@pytest.mark.parametrize(
    ("rule", "parents"),
    [
        ("token", (-1, 0)),
        ("block", (-1, 0)),
        ("traversal", (-1, 0)),
        ("token", (-1, -1, 0)),
        ("traversal", (-1, -1, 0)),
        ("traversal", (-1, 0, 0, -1)),
    ],
)
def test_failing_is_as_probable_as_plainly(rule: str, parents: tuple[int, ...]) -> None:
    """By enumeration: the distribution of texts, where "fails" is what comes after some of them."""
    verifier = RULES[rule]()
    assert isinstance(verifier, DecisionRule)
    for seed in range(3):
        target, drafter = RandomRows(3, seed, zeros=0.0), RandomRows(3, 50 + seed, zeros=0.0)
        outcomes: dict[tuple[int | str, ...], float] = {}
        request = Request(0, [0], 1, SamplingParams(mask=fails), seed=0)
        for probability, draft in drawn_drafts(drafter, parents):
            nodes = [draft.tokens_to(node) for node in range(-1, len(draft))]
            logits = torch.tensor(np.array([target.row(tuple(node)) for node in nodes])).log()
            probs, failed = TargetRows(logits[None], [draft], [request]).unchecked(0)
            decision = verifier.decide(draft, probs)
            for end, share in enumerate(ends_of(decision, len(draft)), start=-1):
                text = tuple(draft.tokens_to(end))
                path = (-1, *draft.tree.path_to(end))
                broken = next((node for node in path if failed[node + 1]), None)
                if broken is not None:
                    add(outcomes, (*draft.tokens_to(broken), "fails"), probability * share)
                    continue
                for token, emitted in enumerate(decision.emit[end + 1].tolist()):
                    extend(outcomes, (*text, token), probability * share * emitted, target)
        plain: dict[tuple[int | str, ...], float] = {}
        extend(plain, (), 1.0, target)
        assert set(outcomes) == set(plain)
        assert all(abs(outcomes[text] - plain[text]) < 1e-12 for text in plain)


LENGTH = 3


def add(
    outcomes: dict[tuple[int | str, ...], float], text: tuple[int | str, ...], share: float
) -> None:
    outcomes[text] = outcomes.get(text, 0.0) + share


def extend(
    outcomes: dict[tuple[int | str, ...], float],
    text: tuple[int, ...],
    share: float,
    target: RandomRows,
) -> None:
    """Go on by plain decoding, to a length that every draft reaches at most."""
    if text in FAILING:
        add(outcomes, (*text, "fails"), share)
    elif len(text) >= LENGTH:
        add(outcomes, text[:LENGTH], share)
    else:
        for token, probability in enumerate(target.row(text)):
            extend(outcomes, (*text, token), share * float(probability), target)
