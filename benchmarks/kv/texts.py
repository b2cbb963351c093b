"""The texts that are read: prose with needles in it, the questions behind it, and what goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.kv.request import KvRequest
from forerun.errors import ConfigError

Encode = Callable[[str], list[int]]

PLACES = (
    *("Amsterdam", "Bergen", "Cairo", "Dakar", "Edinburgh", "Florence", "Geneva", "Hanoi", "Istanbul"),
    *("Jakarta", "Kyoto", "Lisbon", "Madrid", "Nairobi", "Oslo", "Prague", "Quito", "Rome", "Sofia"),
    *("Tunis", "Utrecht", "Vienna", "Warsaw", "York", "Zagreb"),
)  # fmt: skip


@dataclass(frozen=True)
class Needle:
    """A fact in a text, and how it is asked for.

    Args:
        depth: of the text before it, as a share.
        question, answer: token ids.
    """

    depth: float
    question: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Haystack:
    """A prompt with needles in it, and what follows it in the text.

    Args:
        token_ids: of the prompt.
        rest: token ids of the text from there on.
    """

    token_ids: list[int]
    rest: list[int]
    needles: list[Needle]


def prose() -> str:
    """English text that comes with Python: the help on the language's topics.

    Raises:
        ConfigError: where this Python comes without it.
    """
    if find_spec("pydoc_data") is None:
        raise ConfigError("this Python comes without pydoc_data; give a text with --text.")
    from pydoc_data.topics import topics

    return "\n\n".join(text for _, text in sorted(topics.items()))


def haystack(request: KvRequest, encode: Encode, prose_ids: Sequence[int], size: int) -> Haystack:
    """A prompt of `size` tokens with the needles of a request, and the tokens that go on.

    Raises:
        ConfigError: where the needles take more than half of the prompt, or the text is too short.
    """
    draw = random.Random(request.seed)
    # Names of one word first: those that share a word are easily taken for each other.
    names = [
        f"{place}{part}"
        for part in (" West", " East", " South", " North", "")
        for place in draw.sample(PLACES, len(PLACES))
    ]
    if len(request.depths) * request.needles > len(names):
        raise ConfigError(
            f"{len(request.depths)} depths of {request.needles} needles are more than {len(names)}; ask for "
            "fewer."
        )
    needles, facts = [], []
    for depth in sorted(request.depths * request.needles):
        name, number = names.pop(), f"{draw.randrange(10_000):04d}"
        statement = f"The secret number of {name} is"
        facts.append(encode(f"\n\n{statement} {number}.\n\n"))
        question = encode(f"\n\nWhat is the secret number of {name}? {statement}")
        needles.append(Needle(depth, question, encode(f" {number}")))
    room, rest = size - sum(map(len, facts)), request.scored_tokens
    if room < size // 2:
        raise ConfigError(
            f"{len(facts)} needles take {size - room} of {size} tokens of a prompt; ask for fewer, or for "
            "longer contexts."
        )
    if len(prose_ids) < room + rest:
        raise ConfigError(
            f"the text has {len(prose_ids)} tokens; a context of {size} with {rest} scored tokens needs "
            f"{room + rest}. Give a longer one with --text, or ask for shorter contexts."
        )
    token_ids: list[int] = []
    start = 0
    for needle, fact in zip(needles, facts, strict=True):
        end = round(needle.depth * room)
        token_ids += [*prose_ids[start:end], *fact]
        start = end
    token_ids += prose_ids[start:room]
    return Haystack(token_ids, list(prose_ids[room : room + rest]), needles)
