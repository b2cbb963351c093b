"""The rounds of a run as text: the emitted tokens and the tree of drafted ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from forerun.cli.outcome import Round
from forerun.cli.styles import MARKS, MEANINGS, STYLES
from forerun.core import Origin
from forerun.engine.text import ON_ONE_LINE, Tokenizer


def show_rounds(console: Console, rounds: Sequence[Round], tokenizer: Tokenizer | None) -> None:
    """Print the meaning of the marks and all rounds; without a tokenizer, tokens are ids."""
    legend = (f"{MARKS[key][0]}{text}{MARKS[key][1]}" for key, text in MEANINGS.items())
    console.print(" ".join(legend), highlight=False)
    console.print("⟨⟩: not accepted in a draft, plain in the output", highlight=False)
    for number, entry in enumerate(rounds, start=1):
        for line in _lines(number, entry, tokenizer):
            console.print(line, highlight=False)


def _lines(number: int, entry: Round, tokenizer: Tokenizer | None) -> Iterator[Text]:
    """The emitted tokens, then the draft: a chain on one line, branches indented below it."""
    draft, verdict = entry.draft, entry.verdict
    kind = f"{verdict.num_accepted} of {len(draft)} accepted" if len(draft) else "plain"
    pairs = zip(verdict.token_ids, verdict.origins, strict=True)
    emitted = (_token(*pair, tokenizer) for pair in pairs)
    yield Text(" ").join([Text(f"round {number}: {kind}, emitted"), *emitted])
    left = [(child, "  ") for child in reversed(draft.tree.children(-1))]
    while left:
        node, indent = left.pop()
        chain = [node]
        while len(below := draft.tree.children(chain[-1])) == 1:
            chain += below
        origins = (Origin.ACCEPTED if step in entry.accepted else None for step in chain)
        ids = (draft.token_ids[step] for step in chain)
        tokens = (_token(*pair, tokenizer) for pair in zip(ids, origins, strict=True))
        yield Text(indent).append(Text(" ").join(tokens))
        left += [(child, indent + "  ") for child in reversed(below)]


def _token(token: int, origin: Origin | None, tokenizer: Tokenizer | None) -> Text:
    """A token between the marks of its origin, in its style."""
    before, after = ("", "") if origin is None else MARKS[origin]
    text = str(token)
    if tokenizer is not None:
        text = tokenizer.decode([token]).translate(ON_ONE_LINE)
        before, after = before or "⟨", after or "⟩"
    return Text(f"{before}{text}{after}", STYLES[origin] if origin else "")
