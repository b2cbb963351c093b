"""Verdict in words: the setting to use, its gain, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.bench.pairs import ALL, SettingFigures, ahead, picked_fairly
from forerun.bench.settings import COLD, DEFAULT, method_of
from forerun.errors import counted
from forerun.measure.attribution import DEFECT
from forerun.measure.intervals import Interval

# Pairs below which an interval says little.
FEW = 5
# What is not faster by more than this is not worth a setting.
WORTH = 1.01


@dataclass(frozen=True)
class Recommendation:
    """Verdict on one temperature and batch size.

    Args:
        temperature, batch: which.
        advice: the sentence that matters.
        details: further ones.
        use: the setting to use; None for plain decoding, and where nothing is decided.
        decided: False for too few prompts.
    """

    temperature: float
    batch: int
    advice: str
    details: tuple[str, ...] = ()
    use: str | None = None
    decided: bool = True

    @property
    def where(self) -> str:
        """`temperature 0`, and the batch size where it is not 1."""
        batch = "" if self.batch == 1 else f", {self.batch} requests at once"
        return f"temperature {self.temperature:g}{batch}"


class _Field:
    """Figures of one temperature and batch size: of settings that one can choose, over all prompts and by
    category, and the cold default's, which one cannot."""

    def __init__(self, cells: Sequence[SettingFigures]) -> None:
        chosen = [cell for cell in cells if cell.setting != COLD]
        whole = [cell for cell in chosen if cell.category == ALL]
        self.whole = sorted(whole, key=lambda cell: -cell.speedup.value)
        self.parts = [cell for cell in chosen if cell.category != ALL]
        self.cold = [cell for cell in cells if cell.setting == COLD and cell.category == ALL]

    def lost_on(self, setting: str) -> str:
        """Categories on which a setting loses, with its speed-ups."""
        parts = [cell for cell in self.parts if cell.setting == setting and _loses(cell)]
        return ", ".join(f"{cell.category} ({times(cell.speedup.value)})" for cell in parts)


def verdicts(cells: Sequence[SettingFigures], peers: Sequence[str] = ()) -> list[Recommendation]:
    """A verdict for each temperature and batch size.

    Args:
        cells: of all settings.
        peers: names among them that are not forerun's.
    """
    places: dict[tuple[float, int], list[SettingFigures]] = {}
    for cell in cells:
        if cell.setting not in peers:
            places.setdefault((cell.temperature, cell.batch), []).append(cell)
    fields = {place: _Field(own) for place, own in places.items()}
    return [_verdict(own, *place) for place, own in fields.items() if own.whole]


def defects(cells: Sequence[SettingFigures]) -> list[str]:
    """A sentence for each setting with an output that rounding does not explain."""
    return [
        f"DEFECT: {counted(cell.differences[DEFECT], 'output')} of {cell.setting} at temperature "
        f"{cell.temperature:g} differ from plain decoding beyond what rounding explains"
        for cell in cells
        if cell.category == ALL and cell.differences[DEFECT]
    ]


def _verdict(own: _Field, temperature: float, batch: int) -> Recommendation:
    best = own.whole[0]
    if len(best.rows) < FEW:
        advice = (
            f"too few prompts to tell: {named(best.setting)} was {times(best.speedup.value)} plain decoding "
            f"on {len(best.rows)}; give at least {FEW}, better twenty"
        )
        return Recommendation(temperature, batch, advice, decided=False)
    winner = next((cell for cell in own.whole if _wins(cell)), None)
    cold = [
        f"with forerun's default the first request on a new machine reaches {shown(cell.speedup)}"
        for cell in own.cold
    ]
    if winner is None:
        return Recommendation(temperature, batch, _plainly(best), (*_losers(own, None), *cold))
    advice = f"use {named(winner.setting)}: {shown(winner.speedup)}{_cautions(winner)}"
    details = (*_about(own, winner), *_losers(own, winner), *cold)
    return Recommendation(temperature, batch, advice, details, winner.setting)


def _plainly(best: SettingFigures) -> str:
    name, figure = named(best.setting), shown(best.speedup)
    if best.speedup.high < 1:
        return f"decode plainly: every setting is slower, {name} the least, {figure}"
    if best.speedup.value <= WORTH:
        return f"decode plainly: nothing is faster, at best {name}, {figure}"
    return (
        f"decode plainly, or measure more prompts: {name} may be faster, {figure}, but the interval "
        "holds 1"
    )


def _wins(cell: SettingFigures) -> bool:
    return cell.speedup.low > 1 and cell.speedup.value > WORTH


def _cautions(best: SettingFigures) -> str:
    """Caution that belongs to the figure itself: outputs that repeat themselves flatter it."""
    without = best.speedup_without_loops
    if not best.share_that_loops:
        return ""
    share = f"; {best.share_that_loops:.0%} of the outputs repeat themselves"
    return f"{share}, without them {shown(without)}" if without is not None else share


def _about(own: _Field, best: SettingFigures) -> list[str]:
    """Sentences on the setting to use: its equals, where it loses, what is better there, the default."""
    sentences = []
    if lost := own.lost_on(best.setting):
        sentences.append(f"it loses on {lost}")
    better = [
        cell
        for cell in (_better(own, part) for part in own.parts if part.setting == best.setting)
        if cell
    ]
    if better:
        text = ", ".join(
            f"{named(cell.setting)} on {cell.category}, {shown(cell.speedup)}" for cell in better
        )
        sentences.append(f"better there: {text}")
    equals = [named(c.setting) for c in own.whole if c is not best and _equal(best, c)]
    if equals:
        sentences.append(f"as good within the noise: {' / '.join(equals[:3])}")
    for cell in own.whole:
        if cell.setting == DEFAULT and cell is not best and named(DEFAULT) not in equals[:3]:
            sentences.append(f"forerun's default reaches {shown(cell.speedup)}")
    fair = picked_fairly(own.whole) if len(own.whole) > 1 else None
    if fair is not None:
        sentences.append(f"on other prompts than the choice was made on: {shown(fair)}")
    return sentences


def _losers(own: _Field, best: SettingFigures | None) -> list[str]:
    """Sentences on the other methods: those that lose everywhere, and the categories on which others do."""
    sentences = []
    by_method: dict[str, list[SettingFigures]] = {}
    for cell in own.whole:
        by_method.setdefault(method_of(cell.setting), []).append(cell)
    for method, cells in by_method.items():
        if best is not None and (best in cells or method == DEFAULT):
            continue
        if all(map(_loses, cells)):
            sentences.append(f"{method} loses, {shown(cells[0].speedup)} at best")
        elif lost := own.lost_on(cells[0].setting):
            sentences.append(f"{method} loses on {lost}")
    return sentences


def _loses(cell: SettingFigures) -> bool:
    return len(cell.rows) > 1 and cell.speedup.high < 1


def _better(own: _Field, here: SettingFigures) -> SettingFigures | None:
    """The setting that is clearly better than this one on its category, or None."""
    rivals = [c for c in own.parts if c.category == here.category and c is not here]
    rival = max(rivals, key=lambda cell: cell.speedup.value, default=None)
    if rival is None or len(rival.rows) < FEW or not _wins(rival):
        return None
    lead = ahead(rival, here)
    return rival if lead is not None and lead.low > WORTH else None


def _equal(best: SettingFigures, other: SettingFigures) -> bool:
    lead = ahead(best, other)
    return lead is not None and lead.low <= 1 and _wins(other)


def named(setting: str) -> str:
    """A setting in a sentence."""
    return "forerun's default" if setting == DEFAULT else setting


def shown(interval: Interval) -> str:
    """A ratio and its interval as text, such as `1.30 x (1.21–1.38)`."""
    return f"{interval.value:.2f} x ({interval.low:.2f}–{interval.high:.2f})"


def times(value: float) -> str:
    """A ratio as text, such as `0.91 x`."""
    return f"{value:.2f} x"
