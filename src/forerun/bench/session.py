"""A session: all contestants in turns with plain decoding, prompt by prompt, until time or prompts end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic

from forerun.bench.contestants import WARM_UP_TOKENS, Contestant
from forerun.bench.pairs import MeasuredPair, PairKey, Place, digest_of, loops
from forerun.bench.runs import EncodedPrompt, run_plain, side_of
from forerun.bench.settings import DEFAULT
from forerun.bench.verdict import FEW
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.progress import report

# Failures of a contestant one after the other, after which it is not asked again.
FAILURES = 2


Group = tuple[EncodedPrompt, ...]
"""Prompts of a category that are decoded at once."""


def key_of(group: Group, setting: str, temperature: float) -> PairKey:
    """Identity of a measurement."""
    ids = tuple(prompt.prompt_id for prompt in group)
    return PairKey(setting, temperature, len(ids), group[0].category, ids)


def grouped(prompts: Sequence[EncodedPrompt], batches: Sequence[int]) -> list[list[Group]]:
    """Groups of prompts by the prompt that they begin with. A group holds the next prompts of the
    category, and the category's first ones where too few are left."""
    categories: dict[str, list[EncodedPrompt]] = defaultdict(list)
    for prompt in prompts:
        categories[prompt.category].append(prompt)
    places: Counter[str] = Counter()
    groups = []
    for prompt in prompts:
        own, place = categories[prompt.category], places[prompt.category]
        places[prompt.category] += 1
        groups.append(
            [
                tuple(own[(place + i) % len(own)] for i in range(size))
                for size in batches
                if place % size == 0
            ]
        )
    return [group for group in groups if group]


class _Losers:
    """Speed-ups by setting, temperature and batch size, and those settings that are not measured further."""

    def __init__(self) -> None:
        self._speedups: dict[Place, list[float]] = defaultdict(list)
        self.dropped: set[Place] = set()

    def add(self, row: MeasuredPair) -> None:
        """Note the speed-up of a measured row."""
        if row.error is None:
            self._speedups[row.key.place].append(row.speedup)

    def drop(self) -> Iterator[str]:
        """Drop settings that were slower on each of at least FEW prompts; yields a sentence about each."""
        for place, speedups in self._speedups.items():
            if place not in self.dropped and len(speedups) >= FEW and max(speedups) < 1:
                self.dropped.add(place)
                yield (
                    f"{place[0]} at temperature {place[1]:g} was slower than plain decoding on all of its "
                    f"first {len(speedups)} prompts; as time was short it was not measured on the others"
                )

    def halve(self, least: int) -> Iterator[str]:
        """Drop the slower half of the settings at each temperature and batch size, down to `least` and
        never the default; yields a sentence about them."""
        ranked: dict[tuple[float, int], list[Place]] = defaultdict(list)
        for place in sorted(self._speedups, key=lambda place: -median(self._speedups[place])):
            if place not in self.dropped and place[0] != DEFAULT:
                ranked[place[1:]].append(place)
        for places in ranked.values():
            slower = places[max(least, -(-len(places) // 2)) :]
            self.dropped.update(slower)
            if slower:
                left_out = ", ".join(f"{p[0]} ({median(self._speedups[p]):.2f} x)" for p in slower)
                count = len(self._speedups[slower[0]])
                yield f"left out after {count} prompts at temperature {slower[0][1]:g}: {left_out}"


@dataclass
class BenchSession:
    """Measurement of contestants on prompts, some of which may be done already.

    Args:
        plain: decodes plainly, with as many rows as the largest batch.
        contestants: in any order.
        prompts: in the order in which they are measured.
        params: but for the temperature.
        temperatures, batches: to cross.
        minutes: after which no further prompt is begun; 0 for no limit. If they are too few for all
            prompts, settings that lost on each of the first ones are not measured further.
        done: rows of an earlier session; failures are measured again.
        notes: what a reader of the rows must know.
        finalists: after 2, 4, 8, … prompts the slower half of the settings is left out until so many are
            left; 0 leaves out none.
    """

    plain: Engine
    contestants: Sequence[Contestant]
    prompts: Sequence[EncodedPrompt]
    params: SamplingParams
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    minutes: float = 0.0
    done: Mapping[PairKey, MeasuredPair] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    finalists: int = 0
    knocked_out: frozenset[Place] = frozenset()

    def run(self) -> Iterator[MeasuredPair]:
        """The rows that are missing, as they are measured."""
        groups = grouped(self.prompts, self.batches)
        tasks = [(group, t) for begin in groups for group in begin for t in self.temperatures]
        total = sum(len(self._missing(group, t)) for group, t in tasks)
        self._failures: Counter[str] = Counter()
        self._warm: set[tuple[str, int]] = set()
        losers = _Losers()
        measured, turn, started = 0, 0, monotonic()
        for number, begin in enumerate(groups):
            seconds, limit = monotonic() - started, 60 * self.minutes
            if number and limit and seconds > limit:
                self.notes.append(
                    f"the time was over after {number} of {len(groups)} prompts; --minutes 0 measures all"
                )
                return
            if number and limit and seconds / number * len(groups) > limit:
                self.notes += losers.drop()
            if self.finalists and number > 1 and number & (number - 1) == 0:
                before = set(losers.dropped)
                self.notes += losers.halve(self.finalists)
                self.knocked_out |= losers.dropped - before
            for group, temperature in ((group, t) for group in begin for t in self.temperatures):
                missing = self._missing(group, temperature)
                for name in {c.name for c in self.contestants} - {c.name for c in missing}:
                    if self._has(group, name, temperature):
                        losers.add(self.done[key_of(group, name, temperature)])
                turn += 1
                # Nobody is always the first after the pause between two groups.
                shift = turn % max(1, len(missing))
                for contestant in (*missing[shift:], *missing[:shift]):
                    measured += 1
                    if key_of(group, contestant.name, temperature).place in losers.dropped:
                        continue
                    row = self._row(contestant, group, temperature)
                    losers.add(row)
                    yield row
                    self._tell(measured, total, monotonic() - started)

    def usable(self) -> list[MeasuredPair]:
        """The rows of an earlier session that this one does not measure again."""
        wanted = {
            key_of(group, contestant.name, temperature): digest_of(group)
            for begin in grouped(self.prompts, self.batches)
            for group in begin
            for contestant in self.contestants
            for temperature in self.temperatures
        }
        return [
            row
            for key, row in self.done.items()
            if row.error is None and wanted.get(key) == row.digest
        ]

    def _missing(self, group: Group, temperature: float) -> list[Contestant]:
        """Contestants that take part and have no row."""
        params = self._params(temperature)
        return [
            contestant
            for contestant in self.contestants
            if contestant.takes(params, len(group))
            and not self._has(group, contestant.name, temperature)
        ]

    def _has(self, group: Group, name: str, temperature: float) -> bool:
        row = self.done.get(key_of(group, name, temperature))
        return row is not None and row.error is None and row.digest == digest_of(group)

    def _params(self, temperature: float) -> SamplingParams:
        return replace(self.params, temperature=temperature)

    def _tell(self, measured: int, total: int, seconds: float) -> None:
        share = measured / total
        if self.minutes:
            share = max(share, seconds / (60 * self.minutes))
        # No round of the work is timed while a bar is drawn.
        report("measuring", min(999, int(1000 * share)) if measured < total else 1000, 1000)

    def _row(self, contestant: Contestant, group: Group, temperature: float) -> MeasuredPair:
        key, digest = key_of(group, contestant.name, temperature), digest_of(group)
        if self._failures[contestant.name] >= FAILURES:
            return MeasuredPair(key, digest, error="not tried again after its failures")
        try:
            row = self._measured(contestant, group, key, digest)
        except Exception as error:
            self._failures[contestant.name] += 1
            return MeasuredPair(
                key, digest, error=" ".join(f"{type(error).__name__}: {error}".split())
            )
        self._failures[contestant.name] = 0
        return row

    def _measured(
        self, contestant: Contestant, group: Group, key: PairKey, digest: str
    ) -> MeasuredPair:
        params = self._params(key.temperature)
        self._warm_up(contestant, group, params)
        plain = run_plain(self.plain, group, params)
        other = contestant.measure(group, params, plain)
        if not (plain.tokens and other.side.tokens):
            return MeasuredPair(key, digest, error="no token came")
        looping = sum(loops(completion.token_ids) for completion in plain.completions)
        return MeasuredPair(key, digest, plain=side_of(plain), loops=looping, **vars(other))

    def _warm_up(self, contestant: Contestant, group: Group, params: SamplingParams) -> None:
        short = replace(params, max_tokens=WARM_UP_TOKENS)
        batch = len(group)
        if ("", batch) not in self._warm:
            run_plain(self.plain, group, short)
            self._warm.add(("", batch))
        if (contestant.name, batch) not in self._warm:
            contestant.warm_up(group, short)
            self._warm.add((contestant.name, batch))
