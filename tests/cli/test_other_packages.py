"""A method of another package in the help, and `--method-option`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("other_package")
PARROT = ("--method", "parrot", "--temperature", "0", "--prompt", "aaaa", "--max-tokens", "6")


def alone(cli: Cli, *args: str) -> Any:
    return cli.run("generate", "--model", cli.target, "--policy", "fixed", "--json", *args)


def test_the_help_shows_its_options_in_a_section_of_its_own(cli: Cli) -> None:
    text = cli.run("generate", "--help-all").stdout
    section = text.partition("Method parrot:\n")[2].partition("\n\n")[0]
    assert section.splitlines()[0] == "  Repeats the newest token."
    assert "--method-option volume=INTEGER" in section
    assert "How loud.  [default: 3]" in " ".join(section.split()).replace(". [", ".  [")
    assert "--method-option silent_at_night=BOOLEAN" in section
    broken = text.partition("Method broken:\n")[2].partition("\n\n")[0]
    assert "cannot be loaded" in broken
    assert text.index("Method cascade:") < text.index("Method parrot:") < text.index("Sampling:")


def test_its_options_are_read_as_declared(cli: Cli) -> None:
    options = ("volume=9", "silent-at-night=yes", "words=a,b", "share=0.5")
    flags = [part for option in options for part in ("--method-option", option)]
    result = alone(cli, *PARROT, *flags)
    assert result.exit_code == 0, result.output


def test_variables_and_files_hold_them_too(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("options.toml", 'method-option = ["volume=12", "share=0.5"]')
    refused(alone(cli, *PARROT, "--config", file), "volume is 12")
    monkeypatch.setenv("FORERUN_METHOD_OPTION", "volume=13")
    refused(alone(cli, *PARROT, "--config", file), "volume is 13")
    refused(alone(cli, *PARROT, "--method-option", "volume=14"), "volume is 14")
    # What only the parrot reads yields to another method from a stronger place.
    ngram = ("--method", "ngram", *PARROT[2:])
    assert alone(cli, *ngram).exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("volume=12",), ["volume is 12", "[1, 11]"]),
        (("volume=loud",), ["--method-option", "'loud' is not a valid integer"]),
        (("volum=3",), ["unknown speculative option 'volum'", "'volume'"]),
        (("volume",), ["'volume'", "NAME=VALUE"]),
        (("volume=3", "volume=4"), ["gives an option twice"]),
        (("exit_layer=1",), ["exit_layer", "method 'layer_skip'"]),
        (("volume=10", "silent_at_night=true"), ["a parrot that is silent"]),
    ],
    ids=str,
)
def test_wrong_use_is_one_line(cli: Cli, options: tuple[str, ...], words: list[str]) -> None:
    flags = [part for option in options for part in ("--method-option", option)]
    refused(alone(cli, *PARROT, *flags), *words)


def test_it_works_for_every_method_and_once(cli: Cli) -> None:
    ngram = ("--method", "ngram", *PARROT[2:])
    assert alone(cli, *ngram, "--method-option", "prompt-lookup-max=3").exit_code == 0
    twice = ("--prompt-lookup-max", "3", "--method-option", "prompt_lookup_max=3")
    refused(alone(cli, *ngram, *twice), "gives an option twice")
