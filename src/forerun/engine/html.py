"""A completion as HTML: its tokens by origin, with the draft of their round under the pointer."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from forerun.core import Origin, Tree
from forerun.engine.text import ON_ONE_LINE, VISIBLE

if TYPE_CHECKING:
    from forerun.engine.requests import Completion, RoundRecord

# With marks around them, all fit one line of 80 columns.
MEANINGS = {
    Origin.ACCEPTED: "accepted draft",
    Origin.RECOVERED: "recovered after a rejection",
    Origin.BONUS: "bonus after a full draft",
    Origin.PLAIN: "plain",
}
# Underlines show origins without colours too; notebooks have a theme of their own.
_STYLE = """\
.forerun{--a:#2b8a3e;--r:#b35c00;--b:#0b7285;--dim:#6c757d;--back:#f1f3f5;font:15px/1.6 system-ui,sans-serif}
@media(prefers-color-scheme:dark){.forerun{--a:#69db7c;--r:#ffc078;--b:#66d9e8;--dim:#adb5bd;--back:#2b3035}}
body[data-jp-theme-light=true] .forerun{--a:#2b8a3e;--r:#b35c00;--b:#0b7285;--dim:#6c757d;--back:#f1f3f5}
body[data-jp-theme-light=false] .forerun{--a:#69db7c;--r:#ffc078;--b:#66d9e8;--dim:#adb5bd;--back:#2b3035}
.forerun .text{white-space:pre-wrap;overflow-wrap:anywhere}
.forerun .prompt,.forerun .rejected,.forerun .legend{color:var(--dim)}
.forerun .accepted{color:var(--a);text-decoration:underline}
.forerun .recovered{color:var(--r);font-weight:600}
.forerun .bonus{color:var(--b);text-decoration:underline double}
.forerun .rejected{text-decoration:line-through}
.forerun .round{position:relative;outline:0}
.forerun .round:hover,.forerun .round:focus{background:var(--back)}
.forerun .draft{display:none;position:absolute;left:0;top:1.6em;z-index:9;padding:.5em .8em;\
width:max-content;max-width:36em;white-space:pre-wrap;background:var(--back);\
border:1px solid var(--dim);border-radius:4px;font:13px/1.5 ui-monospace,monospace}
.forerun .round:hover .draft,.forerun .round:focus .draft{display:block}
.forerun .legend{font-size:13px;margin-top:.8em}
.forerun .legend span{margin-right:1em}
"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body{{margin:2em auto;max-width:50em;padding:0 1em}}</style>
</head>
<body>
{body}
</body>
</html>
"""


def render(completion: Completion, prompt: str = "") -> str:
    """A fragment of a page, with its style and without scripts.

    Args:
        completion: the completion.
        prompt: shown before the text.
    """
    before = f'<span class="prompt">{_text(prompt)}</span>' if prompt else ""
    body = "".join(_rounds(completion))
    return (
        f'<div class="forerun">\n<style>\n{_STYLE}</style>\n'
        f'<div class="text">{before}{body}</div>\n{_legend(completion)}\n</div>'
    )


def page(completion: Completion, prompt: str = "", title: str = "forerun") -> str:
    """A whole page, which loads nothing."""
    return _PAGE.format(title=_text(title), body=render(completion, prompt))


def _rounds(completion: Completion) -> Iterator[str]:
    """The tokens of each round that drafted in one element, all others alone."""
    done = 0
    for record in completion.rounds:
        yield _tokens(completion, done, record.start)
        done = record.start + record.num_emitted
        own = _tokens(completion, record.start, done)
        yield f'<span class="round" tabindex="0">{own}<span class="draft">{_draft(record)}</span></span>'
    yield _tokens(completion, done, len(completion.texts))


def _tokens(completion: Completion, start: int, stop: int) -> str:
    pairs = zip(completion.texts[start:stop], completion.origins[start:stop], strict=True)
    return "".join(f'<span class="{origin}">{_text(text)}</span>' for text, origin in pairs if text)


def _draft(record: RoundRecord) -> str:
    """The draft as a tree: a chain on one line, the branches of other trees indented below each other."""
    accepted, size = len(record.accepted), len(record.draft_texts)
    tree, lines = Tree(record.parents), [f"{accepted} of {size} drafted tokens accepted"]
    left = [(child, 0) for child in reversed(tree.children(-1))]
    while left:
        node, depth = left.pop()
        chain = [_node(record, node)]
        while len(below := tree.children(node)) == 1:
            [node] = below
            chain.append(_node(record, node))
        lines.append("  " * depth + " ".join(chain))
        left += [(child, depth + 1) for child in reversed(below)]
    return "\n".join(lines)


def _node(record: RoundRecord, node: int) -> str:
    kind = "accepted" if node in record.accepted else "rejected"
    text = escape(record.draft_texts[node].translate(ON_ONE_LINE))
    return f'<span class="{kind}">⟨{text}⟩</span>'


def _legend(completion: Completion) -> str:
    counts = {origin: completion.origins.count(origin) for origin in MEANINGS}
    entries = [
        f'<span class="{origin}">{count} {MEANINGS[origin]}</span>'
        for origin, count in counts.items()
        if count
    ]
    per_forward = completion.stats.tokens_per_target_forward
    if per_forward is not None:
        entries.append(f"<span>{per_forward:.2f} tokens a forward of the model</span>")
    return f'<div class="legend">{"".join(entries)}</div>'


def _text(text: str) -> str:
    return escape(text.translate(VISIBLE))
