r"""How near policy auto comes to the best fixed length, by method and category.

forerun bench -m smollm2 --method suffix,ngram --num-speculative-tokens 1,2,4,8 --policy fixed,auto \
    --records ROWS.jsonl
python -m benchmarks.near_the_best ROWS.jsonl

The best fixed setting of each method, category, temperature and batch size, plain decoding among them, is
found on one half of the prompts; on the other half both are compared. Below that stand all cells
together: policy auto beside the best fixed setting over all of them. Figures are geometric means, over
prompts, of tokens a second over those of plain decoding of the same prompt just before.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

from forerun.bench.pairs import PLAIN, ROWS, MeasuredPair
from forerun.report.markdown import as_markdown
from forerun.report.table import Table

AUTO = "auto"


@dataclass(frozen=True)
class Cell:
    """One method on one kind of work, on the half that nothing was chosen by.

    Args:
        method, category, temperature, batch: which.
        best: the fixed setting that was best on the other half.
        fixed, auto: speed-ups.
    """

    method: str
    category: str
    temperature: float
    batch: int
    best: str
    fixed: float
    auto: float

    @property
    def share(self) -> float:
        """Of the best fixed setting's speed."""
        return self.auto / self.fixed


Group = tuple[str, str, float, int]
Found = dict[Group, dict[str, dict[tuple[str, ...], float]]]


def found_in(rows: Iterable[MeasuredPair]) -> Found:
    """Speed-ups by group, setting (`4 tokens`, `auto`) and prompts."""
    found: Found = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.side is None or row.key.setting == PLAIN:
            continue
        method, _, setting = row.key.setting.partition(", ")
        key = row.key
        found[method, key.category, key.temperature, key.batch][setting][key.prompts] = row.speedup
    return found


def cells(found: Found) -> list[Cell]:
    """Both halves of the prompts are the chosen-by one in turn."""
    made = []
    for group, by_setting in found.items():
        prompts = sorted(set.intersection(*(set(runs) for runs in by_setting.values())))
        halves = [prompts[0::2], prompts[1::2]]
        if AUTO not in by_setting or not all(halves):
            continue
        for chosen_by, other in (halves, halves[::-1]):
            speed = {
                name: geometric_mean([runs[prompt] for prompt in chosen_by])
                for name, runs in by_setting.items()
                if name != AUTO
            }
            best = max(speed, key=lambda name: speed[name])
            if speed[best] <= 1.0:
                best, fixed = PLAIN, 1.0
            else:
                fixed = _mean(by_setting[best], other)
            made.append(Cell(*group, best, fixed, _mean(by_setting[AUTO], other)))
    return made


def overall(found: Found) -> dict[str, float]:
    """By method and setting, the mean over everything; plain decoding is 1."""
    values: dict[str, list[float]] = defaultdict(list)
    for (method, *_), by_setting in found.items():
        for setting, runs in by_setting.items():
            values[f"{method}, {setting}"] += runs.values()
    return {name: geometric_mean(all_of) for name, all_of in values.items()}


def _mean(runs: Mapping[tuple[str, ...], float], prompts: Sequence[tuple[str, ...]]) -> float:
    return geometric_mean([runs[prompt] for prompt in prompts])


def _row(cell: Cell) -> list[str]:
    figures = (f"{cell.fixed:.2f}", f"{cell.auto:.2f}", f"{cell.share:.1%}")
    settings = (f"{cell.temperature:g}", str(cell.batch), cell.best)
    return [cell.method, cell.category, *settings, *figures]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near_the_best", description=__doc__)
    parser.add_argument("rows", nargs="+", type=Path, help="files that forerun bench has written")
    options = parser.parse_args(arguments)
    found = found_in(row for path in options.rows for row in ROWS.read(path))
    made = cells(found)
    header = ("method", "category", "T", "batch", "best fixed", "its speed-up", "auto", "share")
    print(as_markdown(Table.of("", header, map(_row, made), "llrrl")))
    shares = [cell.share for cell in made]
    if not shares:
        parser.error("no category has two prompts that all settings have run")
    near = sum(share >= 0.95 for share in shares)
    print(f"\n{near} of {len(shares)} at 95 % or more; median {median(shares):.1%}\n")
    for name, value in sorted(overall(found).items(), key=lambda entry: -entry[1]):
        print(f"{value:.3f} {name}")


if __name__ == "__main__":
    main()
