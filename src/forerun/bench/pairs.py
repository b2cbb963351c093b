"""Measured pairs: runs of a setting and of plain decoding on the same prompts; the format of their file, and
their figures by setting, temperature, batch size and category."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from forerun.bench.runs import EncodedPrompt, Side
from forerun.core import Stats
from forerun.errors import ConfigError
from forerun.measure import intervals
from forerun.measure.intervals import Interval
from forerun.measure.ledger import Format

PLAIN = "plain"
Place = tuple[str, float, int]
"""A setting at a temperature, with so many requests at once."""


@dataclass(frozen=True)
class PairKey:
    """Identity of a measurement.

    Args:
        setting: name of the setting.
        temperature: temperature of the sampler.
        batch: number of requests at once.
        category: category of the prompts.
        prompts: ids of the prompts, in order.
    """

    setting: str
    temperature: float
    batch: int
    category: str
    prompts: tuple[str, ...]

    @property
    def place(self) -> Place:
        """Setting, temperature and number of requests."""
        return self.setting, self.temperature, self.batch


@dataclass(frozen=True)
class MeasuredPair:
    """A pair of runs.

    Args:
        key: identity of the measurement.
        digest: digest of the prompts' token ids.
        side, plain: times of the setting, and of plain decoding just before it.
        stats: counters of the setting.
        loops: number of plain outputs that repeat themselves.
        identical: number of outputs equal to plain decoding's; None if sampling makes that meaningless.
        differences: causes of the others: `numerics` or `defect`.
        error: reason for which the measurement failed; None if it did not.
    """

    key: PairKey
    digest: str
    side: Side | None = None
    plain: Side | None = None
    stats: Stats | None = None
    loops: int = 0
    identical: int | None = None
    differences: tuple[str, ...] = ()
    error: str | None = None

    @property
    def speedup(self) -> float:
        """Plain seconds over the setting's, for an output as long as the shorter one."""
        assert self.side is not None
        assert self.plain is not None
        tokens = min(self.side.tokens, self.plain.tokens)
        return self.plain.seconds_for(tokens) / self.side.seconds_for(tokens)

    def as_dict(self) -> dict[str, Any]:
        """Content of the row's line in a file."""
        content: dict[str, Any] = {name: value for name, value in asdict(self).items() if value}
        content["identical"] = self.identical
        if self.stats is not None:
            content |= {"stats": asdict(self.stats), **serving_keys(self.stats)}
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> MeasuredPair:
        """A row of what `as_dict` has written.

        Raises:
            ValueError: for anything else.
        """
        try:
            row = _CONTENT.validate_python(content)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from None
        if (row.side is None) == (row.error is None) or (row.side is None) != (row.plain is None):
            raise ValueError("a row holds two sides or an error")
        return row


_CONTENT = TypeAdapter(MeasuredPair)
ROWS = Format(
    mark="forerun_bench",
    version=1,
    command="forerun bench",
    error=ConfigError,
    content=MeasuredPair.as_dict,
    parse=MeasuredPair.from_dict,
)
"""Format of a file of rows; the header holds what makes figures comparable with each other."""


def serving_keys(stats: Stats) -> dict[str, Any]:
    """Acceptance of a run under the names of `vllm bench serve`.

    The acceptance rate is in per cent, and the acceptance length is 1 + accepted / drafts, the bonus token
    always counted.
    """
    drafts, accepted = stats.num_drafts, stats.num_accepted_tokens
    if not drafts:
        return {"spec_decode_num_drafts": 0}
    return {
        "spec_decode_acceptance_rate": 100 * accepted / stats.num_draft_tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": stats.num_draft_tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            count / drafts for count in stats.num_accepted_tokens_per_pos
        ],
    }


def digest_of(prompts: Sequence[EncodedPrompt]) -> str:
    """A short name for the token ids of prompts."""
    text = json.dumps([prompt.token_ids for prompt in prompts])
    return sha256(text.encode()).hexdigest()[:12]


def loops(token_ids: Sequence[int]) -> bool:
    """True if an output repeats itself: some 4-gram occurs more than 8 times."""
    grams = zip(token_ids, token_ids[1:], token_ids[2:], token_ids[3:], strict=False)
    return max(Counter(grams).values(), default=0) > 8


ALL = "all"
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class SettingFigures:
    """A setting at one temperature and batch size, over the prompts of one category or of all.

    Args:
        setting, temperature, batch, category: identity of the figures.
        rows: measured pairs.
        failed: pairs that failed.
    """

    setting: str
    temperature: float
    batch: int
    category: str
    rows: tuple[MeasuredPair, ...]
    failed: tuple[MeasuredPair, ...]

    @cached_property
    def speedup(self) -> Interval:
        """Median over the pairs of their speed-up, prefill included."""
        return intervals.median([row.speedup for row in self.rows])

    @cached_property
    def speedup_without_loops(self) -> Interval | None:
        """Speed-up on prompts whose output does not repeat itself."""
        straight = [row.speedup for row in self.rows if not row.loops]
        return intervals.median(straight) if straight else None

    @cached_property
    def share_that_loops(self) -> float:
        """Share of plain decoding's outputs that repeat themselves."""
        return sum(row.loops for row in self.rows) / self.requests

    @property
    def requests(self) -> int:
        """Requests of all pairs."""
        return sum(len(row.key.prompts) for row in self.rows)

    @cached_property
    def sides(self) -> list[Side]:
        """Times of the setting, one for each pair with plain decoding."""
        return [row.side for row in self.rows if row.side is not None]

    @cached_property
    def plain(self) -> list[Side]:
        """Times of plain decoding."""
        return [row.plain for row in self.rows if row.plain is not None]

    @cached_property
    def by_row(self) -> list[Stats]:
        """Counters of each pair; none for peers."""
        return [row.stats for row in self.rows if row.stats is not None]

    @cached_property
    def stats(self) -> Stats:
        """Counters of all pairs together."""
        return Stats.total(self.by_row)

    @cached_property
    def tokens_per_forward(self) -> Interval | None:
        """Tokens per target forward over all rounds; 1 for plain decoding."""
        return intervals.ratio(
            [stats.num_emitted_tokens for stats in self.by_row],
            [stats.num_target_forwards for stats in self.by_row],
        )

    @cached_property
    def acceptance_length(self) -> Interval | None:
        """Tokens per target forward over the rounds that drafted."""
        return intervals.ratio(
            [stats.num_emitted_in_drafts for stats in self.by_row],
            [stats.num_drafts for stats in self.by_row],
        )

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of drafting rounds that accepted at least 1, 2, … tokens."""
        drafts = self.stats.num_drafts
        return [count / drafts for count in self.stats.num_accepted_tokens_per_pos]

    @property
    def identical(self) -> tuple[int, int] | None:
        """Numbers of outputs that equal plain decoding's and of outputs that must; None where none must."""
        comparable = [row for row in self.rows if row.identical is not None]
        same = sum(row.identical or 0 for row in comparable)
        return (same, sum(len(row.key.prompts) for row in comparable)) if comparable else None

    @property
    def differences(self) -> Counter[str]:
        """Causes of other outputs, as far as known, with their numbers."""
        return Counter(why for row in self.rows for why in row.differences)

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        without = self.speedup_without_loops
        content: dict[str, Any] = {
            "setting": self.setting,
            "temperature": self.temperature,
            "batch_size": self.batch,
            "category": self.category,
            "pairs": len(self.rows),
            "failed": len(self.failed),
            "speedup": vars(self.speedup),
            "speedup_without_loops": without and vars(without),
            "share_that_loops": self.share_that_loops,
        }
        for side, sides in {"": self.sides, "plain_": self.plain}.items():
            content |= {
                f"{side}tokens_per_second": rate(sides),
                f"{side}first_token_ms": first(sides),
                f"{side}inter_token_ms": gaps(sides),
                f"{side}stage_ms_per_token": stages(sides),
            }
        return content | {
            "tokens_per_target_forward": self.tokens_per_forward and vars(self.tokens_per_forward),
            "mean_acceptance_length": self.acceptance_length and vars(self.acceptance_length),
            "identical": self.identical and self.identical[0],
            "comparable": self.identical and self.identical[1],
            "differences": dict(self.differences),
            **(serving_keys(self.stats) if self.by_row else {}),
        }


def summarize(rows: Iterable[MeasuredPair]) -> list[SettingFigures]:
    """All cells that hold a figure, in the order of the rows; categories follow their whole."""
    groups: dict[Place, list[MeasuredPair]] = defaultdict(list)
    for row in rows:
        groups[row.key.place].append(row)
    cells = []
    for place, own in groups.items():
        categories = list(dict.fromkeys(row.key.category for row in own))
        for category in (ALL, *(categories if len(categories) > 1 else ())):
            part = [row for row in own if category in (ALL, row.key.category)]
            measured = tuple(row for row in part if row.error is None)
            failed = tuple(row for row in part if row.error is not None)
            if measured:
                cells.append(SettingFigures(*place, category, measured, failed))
    return cells


def rate(sides: Sequence[Side]) -> float:
    """Tokens a second, prefill included."""
    return sum(side.tokens for side in sides) / sum(side.seconds for side in sides)


def first(sides: Sequence[Side]) -> float | None:
    """Milliseconds to the first token, the median."""
    known = [1e3 * side.first for side in sides if side.first is not None]
    return float(np.median(known)) if known else None


def gaps(sides: Sequence[Side]) -> dict[str, float]:
    """Percentiles of the milliseconds between arrivals of tokens in a stream."""
    every = [gap for side in sides for gap in side.gaps]
    if not every:
        return {}
    values = np.percentile(every, PERCENTILES)
    return {f"p{at}": float(value) for at, value in zip(PERCENTILES, values, strict=True)}


def stages(sides: Sequence[Side]) -> dict[str, float]:
    """Milliseconds a token by stage."""
    tokens = sum(side.tokens for side in sides)
    names = dict.fromkeys(name for side in sides for name in side.stages)
    return {
        name: 1e3 * sum(side.stages.get(name, 0.0) for side in sides) / tokens for name in names
    }


def ahead(left: SettingFigures, right: SettingFigures) -> Interval | None:
    """Ratio of the left's speed to the right's on the prompts that both have; None for fewer than two."""
    theirs = {_place(row): row.speedup for row in right.rows}
    ratios = [row.speedup / theirs[_place(row)] for row in left.rows if _place(row) in theirs]
    return intervals.median(ratios) if len(ratios) > 1 else None


def picked_fairly(cells: Sequence[SettingFigures]) -> Interval | None:
    """Speed-up of the best setting when it is chosen on one half of the prompts and measured on the
    other, both ways. On the prompts that it was chosen by, the best of many looks better than it is."""
    places = list(dict.fromkeys(_place(row) for cell in cells for row in cell.rows))
    halves = [set(places[::2]), set(places[1::2])]
    speedups: list[float] = []
    for seen, other in (halves, halves[::-1]):
        tried = [(cell, own) for cell in cells if (own := _speedups(cell, seen))]
        if not tried:
            return None
        best = max(tried, key=lambda entry: float(np.median(entry[1])))[0]
        speedups += _speedups(best, other)
    return intervals.median(speedups) if speedups else None


def _place(row: MeasuredPair) -> tuple[str, ...]:
    return (row.key.category, *row.key.prompts)


def _speedups(cell: SettingFigures, places: set[tuple[str, ...]]) -> list[float]:
    return [row.speedup for row in cell.rows if _place(row) in places]
