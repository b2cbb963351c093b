"""Answers of a server: their text, tokens and log probabilities, in either of OpenAI's forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Token = int | str
"""A token's id or, where the server tells none, its text."""


@dataclass(frozen=True)
class Spoken:
    """One choice of a reply.

    Args:
        tokens: ids, else texts of the tokens, else characters.
        texts: text of each token; empty if the server does not tell.
        logprobs: log probability of each token; None where the server tells none.
        top: log probabilities of the likeliest tokens there, by text.
        finish_reason: stop, length or another word of the server's.
        origins: accepted, recovered, bonus or plain, for each token; empty if the server does not tell.
    """

    text: str
    tokens: tuple[Token, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[Mapping[str, float], ...]
    finish_reason: str | None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """A server's reply.

    Args:
        spoken: its choices in the order of their indices.
        usage, timings: counters that it tells.
    """

    spoken: tuple[Spoken, ...]
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, content: Any) -> Reply:
        """The reply that a JSON object holds; what is missing in it stays empty."""
        choices = sorted(content["choices"], key=lambda one: one.get("index", 0))
        usage, timings = content.get("usage"), content.get("timings")
        return cls(tuple(map(_spoken, choices)), usage or {}, timings or {})

    @property
    def first(self) -> Spoken:
        return self.spoken[0]


def first_index(left: Sequence[Token], right: Sequence[Token]) -> int | None:
    """Index of the first difference; None if there is none."""
    shared = min(len(left), len(right))
    found = next((index for index in range(shared) if left[index] != right[index]), shared)
    return None if found == len(left) == len(right) else found


def margin_at(off: Spoken, on: Spoken, index: int, body: Mapping[str, Any]) -> float | None:
    """Distance in log probability, by the plain answer's row, of two tokens at their first difference.

    A token that is not among the reported alternatives lies at least as far away as the last of them.
    None where the server tells no alternatives, or none that explain the plain token.
    """
    if index >= min(len(off.top), len(off.texts), len(on.texts)) or not off.top[index]:
        return None
    own, other, before = off.texts[index], on.texts[index], off.texts[:index]
    adjusted = {name: value + _change(name, before, body) for name, value in off.top[index].items()}
    # Servers report log probabilities before penalties, or behind them.
    for row in (adjusted, off.top[index]):
        if row.get(own) == max(row.values()):
            bias = body.get("logit_bias", {}).get(str(on.tokens[index]), 0.0)
            least = min(row.values()) + (
                0.0 if row is off.top[index] else _change(other, before, body)
            )
            return float(row[own] - row.get(other, least) - bias)
    return None


def _change(name: str, before: Sequence[str], body: Mapping[str, Any]) -> float:
    """Change of a token's log probability by penalties, up to a constant."""
    count = before.count(name)
    presence, frequency = (body.get(f"{kind}_penalty", 0.0) for kind in ("presence", "frequency"))
    return -float(presence * (count > 0) + frequency * count)


def _spoken(choice: Mapping[str, Any]) -> Spoken:
    text = choice.get("text")
    if text is None:
        text = (choice.get("message") or {}).get("content") or ""
    scored = choice.get("logprobs") or {}
    entries = scored.get("content")
    if entries is not None:
        texts = [one["token"] for one in entries]
        # llama.cpp reports 0 and no alternatives for tokens that were drafted.
        logprobs = [
            one["logprob"] if one["logprob"] or one.get("top_logprobs") != [] else None
            for one in entries
        ]
        top = [
            {more["token"]: more["logprob"] for more in one.get("top_logprobs") or ()}
            for one in entries
        ]
        ids = [one["id"] for one in entries if "id" in one]
    else:
        texts, logprobs = scored.get("tokens") or [], scored.get("token_logprobs") or []
        top, ids = [one or {} for one in scored.get("top_logprobs") or ()], []
    ids = choice.get("token_ids") or (ids if len(ids) == len(texts) else [])
    return Spoken(
        text,
        tuple(ids or texts or text),
        tuple(texts),
        tuple(logprobs),
        tuple(top),
        choice.get("finish_reason"),
        tuple(choice.get("token_origins") or ()),
    )
