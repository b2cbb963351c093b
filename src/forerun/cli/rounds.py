"""The rounds of a run for people: each draft as a tree, what was accepted, what was emitted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from forerun.cli.report import Round
from forerun.cli.styles import ON_ONE_LINE, STYLES
from forerun.core import Draft, Origin, Verdict
from forerun.engine.text import Tokenizer


def show_rounds(console: Console, rounds: Sequence[Round], tokenizer: Tokenizer | None) -> None:
    """Draw all rounds of a run."""
    for number, entry in enumerate(rounds, start=1):
        console.print(drawing_of(number, entry.draft, entry.verdict, tokenizer), highlight=False)


def drawing_of(number: int, draft: Draft, verdict: Verdict, tokenizer: Tokenizer | None) -> Tree:
    """One round as a tree: a chain on one line, branches below each other, accepted nodes in colour."""
    accepted = set(verdict.path[: verdict.num_accepted])
    root = Tree(_heading(number, draft, verdict, tokenizer), guide_style="dim")
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.tree.parents):
        children.setdefault(parent, []).append(node)
    open_branches = [(root, node) for node in reversed(children.get(-1, []))]
    while open_branches:
        branch, node = open_branches.pop()
        line = Text()
        while True:
            style = STYLES[Origin.ACCEPTED] if node in accepted else "dim"
            line.append(_shown(draft.token_ids[node], tokenizer), style)
            below = children.get(node, [])
            if len(below) != 1:
                break
            line.append(" ")
            node = below[0]
        chain = branch.add(line)
        open_branches += [(chain, child) for child in reversed(below)]
    return root


def _heading(number: int, draft: Draft, verdict: Verdict, tokenizer: Tokenizer | None) -> Text:
    kind = "plain" if not len(draft) else f"{verdict.num_accepted} of {len(draft)} accepted"
    line = Text(f"round {number}: {kind}, emitted ")
    for token, origin in zip(verdict.token_ids, verdict.origins, strict=True):
        line.append(_shown(token, tokenizer), STYLES[origin])
        line.append(" ")
    return line


def _shown(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return str(token)
    return f"⟨{tokenizer.decode([token]).translate(ON_ONE_LINE)}⟩"
