"""Golden files: command lines with what they print, without what depends on the machine and on time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from click.testing import Result

from forerun.drafters import DRAFTERS
from forerun.processor import cpu_name

WIDTH = 100
# Floats below these keys were given, not measured. Their keys are in the order of the flags, and sorted here.
GIVEN = {"settings", "sampling", "speculation", "effort", "config", "temperature"}
# Keys whose values depend on the machine: their types are shown.
MACHINE = {"versions", "hardware", "machine", "kernels", "available", "worst_case"}
# Keys of sentences that may state what was measured.
SENTENCES = {"advice", "answers", "contexts", "details", "notes", "remarks", "sentences", "verdict"}
# The list of all methods grows and shrinks; a text breaks it where its lines end.
METHODS = list(DRAFTERS.names())
_METHODS = re.compile(
    "|".join(r",\s+".join(names) for names in (METHODS, sorted([*METHODS, "default"])))
)
_VERSION = re.compile(r"\b(forerun|torch|transformers|python) \d[\w.+]*")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)*(?:e[-+]?\d+|\+\w+)?")
_LEVEL = re.compile(r"(?<=kernels \()\w+")
_TIME = re.compile(
    r"\d[\d.]*(?= (?:s|ms|GiB free|tokens/s|a second)\b)|(?<=alone )[\d.]+|\d\.\d+(?=x\b)|(?<= s \()\d+"
)


@dataclass(frozen=True)
class Masks:
    """What of a run is shown as it is.

    Args:
        folder: the one that the command ran in.
        measured: whether its sentences and tables state what was measured: numbers in them are hidden.
        exact: whether all is computed from published figures: only the machine is hidden.
    """

    folder: Path
    measured: bool = False
    exact: bool = False

    def text(self, text: str) -> str:
        """Text for people."""
        text = self._of_machine(text)
        return text if self.exact else "".join(map(self._line, text.splitlines(keepends=True)))

    def _of_machine(self, text: str) -> str:
        for folder in (self.folder.resolve(), self.folder):
            text = text.replace(str(folder), "<here>")
        text = _METHODS.sub("<methods>", _VERSION.sub(r"\1 #", text))
        return _LEVEL.sub("<level>", text.replace(cpu_name(), "<cpu>"))

    def _line(self, line: str) -> str:
        hidden = (_NUMBER if self.measured else _TIME).sub("#", line)
        if hidden != line or self.measured:  # The blanks of a table follow its numbers.
            hidden = re.sub(" {2,}", "  ", hidden)
        return re.sub(" +$", "", hidden)

    def value(self, value: Any, key: str = "", given: bool = False) -> Any:
        """A value of an object, and the key that it has there."""
        if key in MACHINE and not given and not (self.exact and isinstance(value, str)):
            return _type(value)
        if isinstance(value, dict):
            given = given or key in GIVEN
            names = sorted(value) if given else value
            return {self._of_machine(name): self.value(value[name], name, given) for name in names}
        if isinstance(value, list):
            value = ["<methods>"] if value == METHODS else value
            return [self.value(inner, key, given) for inner in value]
        if isinstance(value, str):
            return self.text(value) if key in SENTENCES else self._of_machine(value)
        if isinstance(value, float):
            return float(f"{value:.6g}") if self.exact or given or key in GIVEN else "<float>"
        return value


def _type(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _type(inner) for name, inner in value.items()}
    return f"<{type(value).__name__}>"


def lay_out(value: Any, indent: int = 0) -> str:
    """JSON with as much on a line as fits."""
    short = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, dict) or (
        isinstance(value, list)
        and any(isinstance(item, dict | list) or len(str(item)) > 40 for item in value)
    )
    if indent + len(short) <= WIDTH or not nested:
        return short
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {lay_out(item, indent + 1)}" for name, item in value.items()]
    else:
        parts = [lay_out(item, indent + 1) for item in value]
    first, last = ("{", "}") if isinstance(value, dict) else ("[", "]")
    blanks = " " * indent
    return f"{first}\n" + ",\n".join(f"{blanks} {part}" for part in parts) + f"\n{blanks}{last}"


def shown(command: str, result: Result, masks: Masks, files: Mapping[str, str]) -> str:
    """A command line, its exit code, what it wrote to both streams, and the files that it wrote."""
    text = f"$ {command}\nexit {result.exit_code}\n"
    for name, content in {"stdout": result.stdout, "stderr": result.stderr, **files}.items():
        if content.startswith("{"):
            objects = content.splitlines() if name.endswith("jsonl") else [content]
            content = "".join(lay_out(masks.value(json.loads(part))) + "\n" for part in objects)
        else:
            content = masks.text(content)
        text += f"--- {name}\n{content}" if content else ""
    return text if text.endswith("\n") else f"{text}\n"


@dataclass(frozen=True)
class GoldenFile:
    """A file of command lines and their results. Its first lines, each after `# `, say how to run them.

    Args:
        path: of the file.
        text: in it.
    """

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> GoldenFile:
        return cls(path, path.read_bytes().decode())

    @property
    def commands(self) -> list[str]:
        """The command lines, each after `$ `."""
        return re.findall(r"^\$ (forerun.*)$", self.text, re.MULTILINE)

    @property
    def exit_codes(self) -> list[int]:
        """Those of the command lines."""
        return [int(code) for code in re.findall(r"^exit (\d+)$", self.text, re.MULTILINE)]

    @property
    def notes(self) -> dict[str, str]:
        """`measured` and `exact` (see `Masks`), `few` (the fixture `few_cases`), `stdin`, a JSON string,
        and `files` that are compared too."""
        lines = takewhile(lambda line: line.startswith("# "), self.text.splitlines())
        return dict(line[2:].partition(": ")[::2] for line in lines)

    def with_results(self, results: list[str]) -> str:
        """The text with other results of its command lines, as `shown` writes them."""
        head = "".join(
            f"# {name}: {text}\n" if text else f"# {name}\n" for name, text in self.notes.items()
        )
        return head + "\n".join(results)
