"""Commands that turn a request into a result: making them, running them, printing the result."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.bars import bars, waiting
from forerun.cli.options import Command
from forerun.cli.output import visible_output
from forerun.cli.requests import config_option, params_of, read_given
from forerun.errors import ConfigError, UnknownNameError
from forerun.files import check_writable, write_file
from forerun.flags import Given, named, request_from
from forerun.options import FileName, option, options
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.cli.main import Row
    from forerun.report.result import Result


@options
class Files:
    """Files that a result is written to, and the form that is printed."""

    html: FileName | None = option(
        default=None, description="Write the report as a page, with charts.", section="Other"
    )
    markdown: FileName | None = option(default=None, description="Write the report as Markdown.")
    json: bool = option(
        default=False, description="Print one JSON object to standard output instead."
    )
    plot: FileName | None = option(
        default=None, description="Draw it too, as .png, .svg or .pdf; needs forerun[plot]."
    )


def command_of(name: str, row: Row) -> click.Command:
    """The command of a row, with the options of its request."""
    run, kind = _parts(row)
    taken = (*(["json"] if row.json else []), *row.files)

    @click.pass_context
    def callback(ctx: click.Context, /, **_: Any) -> int:
        asked = read_given(ctx, Files)
        # A request may have files of its own by these names.
        own = {name: asked.values[name] for name in asked.values if name in taken}
        files = request_from(Files, replace(asked, values=own))
        _check_files(files)
        given = read_given(ctx, kind)
        request = request_from(kind, given)
        try:
            result = _answered(run, request, row, silent=files.json)
        except ConfigError as error:
            raise named(error, given) from error
        except KeyboardInterrupt as stopped:
            if (partial_result := getattr(stopped, "result", None)) is not None:
                give(partial_result, files)
            raise
        return give(result, files)

    about = (kind.__doc__ or "").partition("\n\nArgs:")[0]
    return Command(
        name,
        row,
        kind,
        params=[
            *params_of(kind),
            *(param for param in params_of(Files) if param.name in taken),
            config_option(),
        ],
        callback=callback,
        help=f"{about}\n\n{cleandoc(getattr(kind, 'more', ''))}",
    )


def _parts(row: Row) -> tuple[Callable[..., Result], type[Any]]:
    """The function that answers, and the class of its request."""
    module_name, function, request = f"{row.module}::".split(":")[:3]
    module = importlib.import_module(module_name)
    run = getattr(module, function or "run")
    return run, getattr(module, request or run.__annotations__["request"])


def call(command: str, options: Mapping[str, Any]) -> Result:
    """The result of a command with these options, as `forerun.run` gives it.

    Raises:
        UnknownNameError: for a command that does not exist or gives no result, or an unknown option.
    """
    from forerun.cli.main import COMMANDS
    from forerun.report.result import answer

    known = {name: row for name, row in COMMANDS.items() if row.json}
    if command not in known:
        raise UnknownNameError("command", command, known)
    run, kind = _parts(known[command])
    return answer(run, request_from(kind, Given(dict(options))))


def quiet_libraries() -> None:
    """Silence other libraries: an error is one line of forerun's, without their advice in between.

    Must run before transformers is imported. Settings of the user stay.
    """
    # transformers also raises what it logs as an error, and the user sees that as one line.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not os.isatty(2):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _answered(run: Callable[..., Result], request: Any, row: Row, *, silent: bool) -> Result:
    from forerun.report.result import answer

    quiet_libraries()
    if row.live:
        return answer(run if silent else partial(run, new_output=visible_output), request)
    if row.torch:
        with waiting("starting"):
            importlib.import_module("torch")
    with bars():
        return answer(run, request)


def _check_files(files: Files) -> None:
    """Check before anything is computed that charts can be drawn and files can be written.

    Raises:
        ConfigError: without matplotlib, or for a file of another kind or that cannot be written.
    """
    for name in ("html", "markdown", "plot"):
        if (file := getattr(files, name)) is not None:
            check_writable(f"--{name}", file)
    if files.plot is None:
        return
    from forerun.report.plot import FORMATS, format_of

    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; run: pip install 'forerun[plot]'.")
    if format_of(files.plot) not in FORMATS:
        kinds = ", ".join(f".{kind}" for kind in FORMATS)
        raise ConfigError(f"--plot is {files.plot}; give a file name that ends in one of {kinds}.")


def give(result: Result, files: Files) -> int:
    """Print a result and write the files that are asked for; the exit code.

    Raises:
        ConfigError: where a file cannot be written.
    """
    if files.json:
        click.echo(json.dumps(result.as_dict(), allow_nan=False))
    else:
        from forerun.report.terminal import show

        show(result)
    if files.plot is not None:
        from forerun.report.plot import draw

        draw(files.plot, result.charts)
        say(f"drawn to {files.plot}")
    if files.markdown is not None:
        from forerun.report.markdown import document

        write_file("report", files.markdown, document(result))
    if files.html is not None:
        from forerun.report.html import page

        write_file("page", files.html, page(result))
    return result.exit_code
