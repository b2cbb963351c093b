"""Verdict in words: the setting to use, its gain, and where it loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.bench.settings import COLD, DEFAULT, method_of
from forerun.bench.summary import ALL, SettingFigures, ahead, picked_fairly
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


@dataclass
class _Field:
    """The cells of one temperature and batch size that one can choose, by setting, and by setting and
    category; and the cold default's, which one cannot."""

    whole: dict[str, SettingFigures] = field(default_factory=dict)
    parts: dict[tuple[str, str], SettingFigures] = field(default_factory=dict)
    cold: SettingFigures | None = None

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys(category for _, category in self.parts))


def verdicts(cells: Sequence[SettingFigures], peers: Sequence[str] = ()) -> list[Recommendation]:
    """A verdict for each temperature and batch size.

    Args:
        cells: of all settings.
        peers: names among them that are not forerun's.
    """
    fields: dict[tuple[float, int], _Field] = {}
    for cell in cells:
        if cell.setting not in peers:
            own = fields.setdefault((cell.temperature, cell.batch), _Field())
            if cell.setting == COLD:
                own.cold = cell if cell.category == ALL else own.cold
            elif cell.category == ALL:
                own.whole[cell.setting] = cell
            else:
                own.parts[cell.setting, cell.category] = cell
    return [_verdict(own, *place) for place, own in fields.items() if own.whole]


def defects(cells: Sequence[SettingFigures]) -> list[str]:
    """A sentence for each setting with an output that rounding does not explain."""
    return [
        f"DEFECT: {cell.differences[DEFECT]} outputs of {cell.setting} at temperature "
        f"{cell.temperature:g} are not plain decoding's, and rounding does not explain it"
        for cell in cells
        if cell.category == ALL and cell.differences[DEFECT]
    ]


def _verdict(own: _Field, temperature: float, batch: int) -> Recommendation:
    cells = sorted(own.whole.values(), key=lambda cell: -cell.speedup.value)
    best = cells[0]
    if len(best.rows) < FEW:
        advice = (
            f"too few prompts to tell: {named(best.setting)} was {times(best.speedup.value)} plain decoding "
            f"on {len(best.rows)}; give at least {FEW}, better twenty"
        )
        return Recommendation(temperature, batch, advice, decided=False)
    winners = [cell for cell in cells if _wins(cell)]
    if not winners:
        return Recommendation(
            temperature, batch, _plainly(best), (*_losers(own, None), *_cold(own))
        )
    best = winners[0]
    return Recommendation(
        temperature,
        batch,
        f"use {named(best.setting)}: {shown(best.speedup)}{_cautions(best)}",
        (*_about(own, best, cells), *_losers(own, best), *_cold(own)),
        best.setting,
    )


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


def _about(own: _Field, best: SettingFigures, cells: Sequence[SettingFigures]) -> list[str]:
    """On the setting to use: its equals, where it loses, what is better there, the default."""
    sentences = []
    losing = [(c, cell) for c, cell in _of(own, best.setting).items() if _loses(cell)]
    if losing:
        sentences.append(f"it loses on {_listed(losing)}")
    better = [
        (category, other) for category in own.categories if (other := _better(own, best, category))
    ]
    if better:
        text = ", ".join(
            f"{named(cell.setting)} on {c}, {shown(cell.speedup)}" for c, cell in better
        )
        sentences.append(f"better there: {text}")
    equals = [named(c.setting) for c in cells if c is not best and _equal(best, c)]
    if equals:
        sentences.append(f"as good within the noise: {' / '.join(equals[:3])}")
    default = own.whole.get(DEFAULT)
    if default is not None and default is not best and named(DEFAULT) not in equals[:3]:
        sentences.append(f"forerun's default reaches {shown(default.speedup)}")
    fair = picked_fairly(cells) if len(cells) > 1 else None
    if fair is not None:
        text = f"on other prompts than the choice was made on: {shown(fair)}"
        sentences.append(text)
    return sentences


def _losers(own: _Field, best: SettingFigures | None) -> list[str]:
    """On the other methods: those that lose everywhere, and the categories on which others do."""
    sentences = []
    by_method: dict[str, list[SettingFigures]] = {}
    for cell in own.whole.values():
        by_method.setdefault(method_of(cell.setting), []).append(cell)
    for method, cells in by_method.items():
        top = max(cells, key=lambda cell: cell.speedup.value)
        if best is not None and (best in cells or method == DEFAULT):
            continue
        if all(_loses(cell) for cell in cells):
            sentences.append(f"{method} loses, {shown(top.speedup)} at best")
            continue
        losing = [(c, cell) for c, cell in _of(own, top.setting).items() if _loses(cell)]
        if losing:
            sentences.append(f"{method} loses on {_listed(losing)}")
    return sentences


def _cold(own: _Field) -> list[str]:
    """On the first request on a new machine."""
    if own.cold is None:
        return []
    figure = shown(own.cold.speedup)
    return [f"with forerun's default the first request on a new machine reaches {figure}"]


def _of(own: _Field, setting: str) -> dict[str, SettingFigures]:
    return {c: cell for (name, c), cell in own.parts.items() if name == setting}


def _loses(cell: SettingFigures) -> bool:
    return len(cell.rows) > 1 and cell.speedup.high < 1


def _better(own: _Field, best: SettingFigures, category: str) -> SettingFigures | None:
    """The setting that is surely better on a category, if one is."""
    here = own.parts.get((best.setting, category))
    rivals = [
        cell for (name, c), cell in own.parts.items() if c == category and name != best.setting
    ]
    if here is None or not rivals:
        return None
    rival = max(rivals, key=lambda cell: cell.speedup.value)
    lead = ahead(rival, here)
    enough = len(rival.rows) >= FEW
    return rival if enough and lead is not None and lead.low > WORTH and _wins(rival) else None


def _equal(best: SettingFigures, other: SettingFigures) -> bool:
    lead = ahead(best, other)
    return lead is not None and lead.low <= 1 and _wins(other)


def _listed(losing: Sequence[tuple[str, SettingFigures]]) -> str:
    return ", ".join(f"{category} ({times(cell.speedup.value)})" for category, cell in losing)


def named(setting: str) -> str:
    """A setting in a sentence."""
    return "forerun's default" if setting == DEFAULT else setting


def shown(interval: Interval) -> str:
    """`1.30 x (1.21–1.38)`."""
    return f"{interval.value:.2f} x ({interval.low:.2f}–{interval.high:.2f})"


def times(value: float) -> str:
    """`0.91 x`."""
    return f"{value:.2f} x"
