"""What heads keep by row: always the states of the text's own tokens, from where their cache ends."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from forerun.core import ForwardOutput, Origin, Request, Verdict
from forerun.heads.features import Features
from forerun.params import SamplingParams

LAYERS = (2, 5)


class Slots:
    """A cache that only counts."""

    def __init__(self, rows: int) -> None:
        self.lengths = [0] * rows

    def length(self, row: int) -> int:
        return self.lengths[row]

    def trim(self, row: int, length: int) -> None:
        self.lengths[row] = min(self.lengths[row], length)


def request(token_ids: list[int], row: int = 0, speculative: bool = True) -> Request:
    return Request(0, token_ids, 1, SamplingParams(), 0, row, speculative)


def state(token_ids: list[int], position: int) -> Tensor:
    """That of a token, which depends on all before it."""
    number = hash(tuple(token_ids[: position + 1])) % 100_003
    return torch.tensor([number + 0.25 * layer for layer in LAYERS])


def output_of(token_ids: list[int], positions: range) -> ForwardOutput:
    states = torch.stack([state(token_ids, position) for position in positions])
    return ForwardOutput(None, {layer: states[None, :, i, None] for i, layer in enumerate(LAYERS)})


def prefill(features: Features, asked: Request, start: int) -> None:
    while start < len(asked) - 1:
        stop = min(len(asked) - 1, start + random.randint(1, 5))
        features.observe_prefill(asked, start, output_of(asked.token_ids, range(start, stop)))
        start = stop


def a_round(features: Features, asked: Request, emitted: list[int]) -> None:
    """A round whose draft is accepted whole, or has twice as many nodes, of which every other is accepted."""
    step = random.choice((1, 2))
    start, path = len(asked) - 1, tuple(range(step - 1, step * len(emitted) - 1, step))
    asked.extend(emitted)
    wanted = output_of(asked.token_ids, range(start, start + len(emitted)))
    hidden = {}
    for layer, states in wanted.hidden.items():
        hidden[layer] = torch.full((1, step * len(emitted), 1), torch.nan)
        hidden[layer][:, [0, *(node + 1 for node in path)]] = states
    verdict = Verdict(path, tuple(emitted), (Origin.ACCEPTED,) * len(emitted))
    features.observe([asked], [verdict], ForwardOutput(None, hidden))


def check(features: Features, slots: Slots, asked: Request, base: int = 0) -> int:
    """What is missing are the states up to the newest token run; how many. They are run then."""
    missing = features.missing(asked)
    assert missing is not None
    assert missing.start == slots.lengths[asked.row]
    positions = range(base + missing.start, len(asked) - 1)
    assert len(missing.states) == len(positions) >= 1
    expected = torch.stack([state(asked.token_ids, position) for position in positions])
    assert torch.equal(missing.states, expected)
    cut = random.randint(0, len(positions) - 1)
    for count in (cut, len(positions) - cut):
        slots.lengths[asked.row] += count
        features.ran(asked, count)
    # Drafted slots, which are not the text's.
    slots.lengths[asked.row] += random.randint(0, 3)
    return len(positions)


def test_states_follow_the_text() -> None:
    """Through prompts in chunks, rounds of any length, rounds that draft nothing, later prompts that
    share a beginning, and rows apart."""
    random.seed(0)
    slots = Slots(3)
    features = Features(LAYERS, 3, slots)
    texts: list[list[int]] = [[], [], []]
    for _ in range(60):
        row = random.randrange(3)
        shared = random.randint(0, max(len(texts[row]) - 1, 0))
        fresh = [random.randrange(5) for _ in range(random.randint(2, 9))]
        asked = request(texts[row][:shared] + fresh, row)
        prefill(features, asked, shared)
        for _ in range(random.randint(0, 5)):
            if random.random() < 0.6:
                check(features, slots, asked)
            a_round(features, asked, [random.randrange(5) for _ in range(random.randint(1, 4))])
        # The newest token has not been run.
        texts[row] = asked.token_ids[:-1]


def test_only_what_is_new_is_run() -> None:
    slots = Slots(1)
    features, asked = Features(LAYERS, 1, slots), request([1, 2, 3, 4])
    prefill(features, asked, 0)
    assert check(features, slots, asked) == 3
    # A second draft after the same text needs the newest output again.
    assert check(features, slots, asked) == 1
    a_round(features, asked, [5, 6, 7])
    assert check(features, slots, asked) == 3
    later = request([1, 2, 3, 4, 9, 8])
    prefill(features, later, 4)
    assert check(features, slots, later) == 1


def test_nothing_is_drafted_before_the_newest_state_is_seen() -> None:
    slots = Slots(1)
    features, asked = Features(LAYERS, 1, slots), request([1, 2, 3])
    assert features.missing(asked) is None
    prefill(features, asked, 0)
    asked.extend([4])
    assert features.missing(asked) is None
    # The same prompt again: the target runs nothing, and the newest state is not there any more.
    asked = request([1, 2, 3])
    prefill(features, asked, 0)
    check(features, slots, asked)
    a_round(features, asked, [4, 5])
    check(features, slots, asked)
    again = request([1, 2, 3])
    assert features.missing(again) is None
    a_round(features, again, [7])
    assert check(features, slots, again) == 1


def test_a_gap_begins_the_row_anew() -> None:
    """Where a round was not observed, or a request did not speculate."""
    slots = Slots(1)
    features, asked = Features(LAYERS, 1, slots), request([1, 2, 3])
    prefill(features, asked, 0)
    check(features, slots, asked)
    asked.extend([4, 5])
    a_round(features, asked, [6])
    assert check(features, slots, asked, base=4) == 1
    plain = request([*asked.token_ids, 7, 8], speculative=False)
    prefill(features, plain, 5)
    a_round(features, plain, [9])
    assert features.missing(plain) is None
    after = request([*plain.token_ids, 1, 1])
    prefill(features, after, len(plain) - 1)
    assert check(features, slots, after, base=8) == 2


def test_without_a_cache_the_newest_state_is_kept() -> None:
    features, asked = Features(LAYERS, 1), request([1, 2, 3, 4])
    prefill(features, asked, 0)
    a_round(features, asked, [5, 6, 7])
    for _ in range(2):
        missing = features.missing(asked)
        assert missing is not None
        assert torch.equal(missing.states, state(asked.token_ids, 5)[None])
    features.clear(0)
    assert features.missing(asked) is None


def test_a_row_keeps_no_other_rows_states() -> None:
    """A view of a round's states would keep those of all of its requests, and of what was not accepted."""
    features = Features(LAYERS, 4, Slots(4))
    batch = [request([1, 2, row], row) for row in range(4)]
    for asked in batch:
        prefill(features, asked, 0)
        asked.extend([7])
    hidden = {layer: torch.zeros(4, 3, 1) for layer in LAYERS}
    verdict = Verdict((), (7,), (Origin.RECOVERED,))
    features.observe(batch, [verdict] * 4, ForwardOutput(None, hidden))
    for row in features._rows:
        newest = row.states[-1]
        assert newest.untyped_storage().nbytes() == newest.nbytes
