"""The rounds of a run for people: every drafted token with its test, and what was emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from forerun.cli.outcome import Round
from forerun.cli.styles import MARKS, STYLES
from forerun.core import Origin, Tree
from forerun.engine.html import MEANINGS
from forerun.engine.text import ON_ONE_LINE, Tokenizer
from forerun.verification.explain import NodeRecord, Top

# Columns of a drafted token with its branches, of a token alone, and of a number.
_DRAFTED, _TOKEN, _NUMBER = 28, 14, 7
_WIDTH = 80
# Of larger trees only those nodes are shown that were tested or accepted.
_MOST_NODES = 16
_NOTES = """\
p: the target's probability of a drafted token; q: the draft's (1: not drawn);
u: the uniform that its test was decided by: the test passes where u is smaller.
"""
# How a rule tests a draft, and the columns of it after p, q and their ratio.
_RULES = {
    "token": ("tested from the first token on, each with min(1, p/q)", ("u",)),
    "block": (
        "tested from the last token back; one that passes takes all before it",
        ("test", "u"),
    ),
    "traversal": ("tested from the leaves back; one that passes takes its path", ("test", "u")),
    "coupled": ("no tests: a token stands that the target draws, too", ()),
    "typical": ("no uniforms: a token stands whose p is above a threshold", ("above",)),
}


def show_rounds(console: Console, rounds: Sequence[Round], tokenizer: Tokenizer | None) -> None:
    """Draw all rounds of a run, after what their marks and columns mean."""
    shown = _Shown(tokenizer)
    for line in shown.lines(rounds):
        console.print(line, highlight=False)


class _Shown:
    """Rounds as lines of at most 80 columns.

    Args:
        tokenizer: of the tokens; None shows their ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def lines(self, rounds: Sequence[Round]) -> Iterator[Text]:
        """All lines."""
        marked = (f"{MARKS[key][0]}{text}{MARKS[key][1]}" for key, text in MEANINGS.items())
        yield Text(" ".join(marked))
        yield Text(_NOTES.rstrip())
        for rule in sorted({entry.why.rule for entry in rounds if entry.why and entry.draft}):
            yield Text(f"{rule}: {_RULES[rule][0]}.")
        for number, entry in enumerate(rounds, start=1):
            yield self._heading(number, entry)
            if len(entry.draft):
                yield from self._nodes(entry)
                yield from self._emission(entry)

    def _heading(self, number: int, entry: Round) -> Text:
        verdict, size = entry.verdict, len(entry.draft)
        kind = f"{verdict.num_accepted} of {size} accepted" if size else "plain"
        line = Text(f"round {number}: {kind}, emitted")
        for token, origin in zip(verdict.token_ids, verdict.origins, strict=True):
            line.append(" ").append(self._token(token, origin))
        return line

    def _nodes(self, entry: Round) -> Iterator[Text]:
        draft, why, accepted = entry.draft, entry.why, entry.accepted
        names = _RULES[why.rule][1] if why else ()
        if why:
            columns = "".join(f"{name:>{_NUMBER}}" for name in ("p", "q"))
            columns += f"{'min(1,p/q)':>11}" + "".join(f"{name:>{_NUMBER}}" for name in names)
            yield Text(" " * _DRAFTED + columns, "dim")
        large, left_out = len(draft) > _MOST_NODES, 0
        for node in _depth_first(draft.tree):
            record = why.nodes[node] if why else None
            tested = record is not None and record.passed is not None
            if large and not tested and node not in accepted:
                left_out += 1
                continue
            yield self._node(entry, node, record, names)
            if record and record.residual and self._is_explained(entry, node):
                yield Text(" " * 4 + "left: ").append(self._top(record.residual))
        if left_out:
            yield Text(f"  and {left_out} nodes that were not reached", "dim")

    def _node(
        self, entry: Round, node: int, record: NodeRecord | None, names: Sequence[str]
    ) -> Text:
        origin = Origin.ACCEPTED if node in entry.accepted else None
        branches = "  " + _branches(entry.draft.tree, node)
        room = max(_DRAFTED - cell_len(branches), 6)
        line = Text(branches).append(self._token(entry.draft.token_ids[node], origin, room))
        line.append(" " * (_DRAFTED - line.cell_len))
        if record is None:
            return line
        line.append(_number(record.target_prob) + _number(record.draft_prob))
        line.append(" " * 4 + _number(record.ratio))
        values = {"test": record.accept, "u": record.uniform, "above": record.threshold}
        line.append("".join(_number(values[name]) for name in names))
        tested = {True: "accepted", False: "rejected", None: ""}[record.passed]
        return line.append("  " + ("accepted" if origin else tested))

    def _is_explained(self, entry: Round, node: int) -> bool:
        """True if the row that a rejection leaves is shown below it: the last token's row follows anyway."""
        tree, last = entry.draft.tree, entry.accepted[-1] if entry.accepted else -1
        follows = tree.parents[node] == last and node not in tree.next_sibling
        return tree.parents[node] in (-1, *entry.accepted) and not follows

    def _emission(self, entry: Round) -> Iterator[Text]:
        """The row that the last token was drawn from."""
        why, origins = entry.why, entry.verdict.origins
        if why is None or why.token_id is None or not origins or origins[-1] is Origin.ACCEPTED:
            return
        line = Text("  ").append(self._token(entry.verdict.token_ids[-1], origins[-1], _TOKEN))
        if why.uniform is None:
            line.append(" is the target's own draw from ")
        else:
            left = "what is left" if origins[-1] is Origin.RECOVERED else "p"
            line.append(f" drawn at u {why.uniform:.4f} from {left}: ")
        top = self._top(why.emit)
        if line.cell_len + top.cell_len <= _WIDTH:
            yield line.append(top)
        else:
            yield line
            yield Text(" " * 4).append(top)

    def _top(self, top: Top) -> Text:
        shares = [(token, "<0.1%" if value < 5e-4 else f"{value:.1%}") for token, value in top]
        parts = (f"{self._token(token, None, _TOKEN)} {share}" for token, share in shares)
        return Text("  ".join(parts))

    def _token(self, token: int, origin: Origin | None, room: int = _TOKEN + 6) -> Text:
        """A token between the marks of its origin, in its style; a long one is cut."""
        before, after = ("", "") if origin is None else MARKS[origin]
        text = str(token)
        if self._tokenizer is not None:
            text = self._tokenizer.decode([token]).translate(ON_ONE_LINE)
            before, after = before or "⟨", after or "⟩"
        if cell_len(text) > room - 2:
            text = set_cell_size(text, room - 3) + "…"
        return Text(f"{before}{text}{after}", STYLES[origin] if origin else "")


def _depth_first(tree: Tree) -> Iterator[int]:
    left = list(reversed(tree.children(-1)))
    while left:
        yield (node := left.pop())
        left += reversed(tree.children(node))


def _branches(tree: Tree, node: int) -> str:
    """The lines that lead to a node, two columns for each ancestor with siblings and for the node."""
    parts = []
    for step in tree.path_to(node):
        if len(tree.children(tree.parents[step])) > 1:
            last = step not in tree.next_sibling
            own = "└ " if last else "├ "
            parts.append(own if step == node else "  " if last else "│ ")
    return "".join(parts)


def _number(value: float | None) -> str:
    """A probability in its column."""
    if value is None:
        return f"{'–':>{_NUMBER}}"
    return f"{'<.0001' if 0 < value < 1e-4 else f'{value:.4f}':>{_NUMBER}}"
