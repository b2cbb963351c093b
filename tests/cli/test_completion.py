"""What a shell completes, by click's own mechanism, and what that loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from forerun.cli.main import application
from forerun.drafters import DRAFTERS


def complete(*words: str) -> list[CompletionItem]:
    shell = ShellComplete(application, {}, "forerun", "_FORERUN_COMPLETE")
    return shell.get_completions(list(words[:-1]), words[-1])


def values(*words: str) -> list[str]:
    return [item.value for item in complete(*words) if item.type == "plain"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gen",), {"generate"}),
        (("generate", "--method", ""), set(DRAFTERS)),
        (("prove", "--method", "suf"), {"suffix"}),
        (("generate", "--policy", ""), {"auto", "fixed", "adaptive"}),
        (("generate", "--draft-sample-method", "gr"), {"greedy"}),
        (("simulate", "--hardware", "h1"), {"h100"}),
        (("simulate", "--target", "llama-3.1-7"), {"llama-3.1-70b"}),
        (("generate", "--num-spec"), {"--num-speculative-tokens"}),
    ],
)
def test_names(words: tuple[str, ...], expected: set[str]) -> None:
    assert set(values(*words)) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "--model", "./che"),
        ("generate", "--tree", ""),
        ("generate", "--corpus", ""),
        ("generate", "--prompt-file", ""),
        ("generate", "--config", "x"),
        ("info", "./"),
    ],
)
def test_files(words: tuple[str, ...]) -> None:
    # bash forgets the names before the last file.
    assert complete(*words)[0].type == "file"


@pytest.mark.parametrize("words", ["forerun generate --method ", "forerun ", "forerun info "])
def test_a_shell_loads_no_torch(words: str) -> None:
    program = (
        "import os, sys\n"
        f"os.environ |= {{'COMP_WORDS': {words!r}, 'COMP_CWORD': '{words.count(' ')}'}}\n"
        "os.environ['_FORERUN_COMPLETE'] = 'bash_complete'\n"
        "from forerun.cli.main import application\n"
        "try: application.main([], prog_name='forerun')\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'numpy'} & set(sys.modules) or 'none', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("plain,") or done.stdout.startswith("file,"), done.stderr
    assert done.stderr.splitlines()[-1] == "none"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert f"_FORERUN_COMPLETE={shell}_source" in page.read_text(encoding="utf-8")
    program = (
        f"import os; os.environ['_FORERUN_COMPLETE'] = '{shell}_source'\n"
        "from forerun.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "_FORERUN_COMPLETE" in done.stdout, done.stderr
