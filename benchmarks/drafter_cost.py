"""The cost of drafters without a model: trees, suffix automata, token recycling, prompt lookup.

python -m benchmarks.drafter_cost [--tokens 100000] [--repeats 400] [--json]

The operations on one text are timed in turns, each once per turn; printed are the medians over all turns.
Trees grown with a model are timed without its forwards: from logits to the finished draft. The texts are
the zoo's held-out prompts, repeated with one token in twenty changed, modules of the standard library, and
one token repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from forerun.core import (
    MOST_NODES,
    NO_DRAFT,
    Draft,
    Drawing,
    ForwardOutput,
    Origin,
    Plan,
    Request,
    Verdict,
)
from forerun.drafters.automaton import SuffixAutomaton
from forerun.drafters.base import BaseDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import BYTES_PER_TOKEN, SuffixDrafter
from forerun.drafters.token_recycling import RANK_SHARES, TokenRecyclingDrafter
from forerun.models import Checkpoint
from forerun.params import SamplingParams
from forerun.proof.prompts import held_out_prompts
from forerun.randomness import Randomness
from forerun.report.markdown import as_markdown
from forerun.report.table import long_table
from forerun.trees.growth import grow, start
from forerun.trees.host import grow_on_host
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape

CHAIN = Plan(16)
TREE = Plan(16, num_nodes=64)
_SHAPE = best_shape(TYPICAL_ACCEPTANCE, 64, 16).shape
SHAPE = Plan(16, tree=_SHAPE)
VOCAB_SIZES = (4096, 151_936)

Timed = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    """One operation.

    Args:
        what: the operation.
        microseconds: the median over all turns.
        nodes: of its drafts, the median; None for an operation without one.
    """

    what: str
    microseconds: float
    nodes: float | None


@dataclass(frozen=True)
class Memory:
    """An automaton: bytes and states a token, and microseconds a token to build it."""

    text: str
    bytes_per_token: float
    states_per_token: float
    microseconds: float


def encoded_modules() -> Iterator[list[int]]:
    """Token ids of the standard library's modules."""
    # The backend does not warn that whole modules are longer than the zoo's context.
    tokenizer = Checkpoint.open("zoo").tokenizer.backend_tokenizer
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return (tokenizer.encode(module.read_text("utf-8")).ids for module in modules)


def texts(num_tokens: int) -> dict[str, list[int]]:
    """Token ids of each text: `num_tokens`, and more for the turns."""
    tokenizer = Checkpoint.open("zoo").tokenizer.backend_tokenizer
    pieces = [tokenizer.encode(prompt).ids for prompt in held_out_prompts()]
    wanted = num_tokens + num_tokens // 10
    return {
        "held-out prompts": _fill(_varied(pieces), wanted),
        "standard library": _fill(encoded_modules(), wanted),
        "one token": [1] * wanted,
    }


def _varied(pieces: list[list[int]]) -> Iterator[list[int]]:
    """The pieces in ever new order, with one token in twenty replaced by another of the text."""
    source = random.Random(0)
    all_tokens = [token for piece in pieces for token in piece]
    while True:
        for piece in source.sample(pieces, len(pieces)):
            yield [
                source.choice(all_tokens) if source.random() < 0.05 else token for token in piece
            ]


def _fill(pieces: Iterator[list[int]], count: int) -> list[int]:
    token_ids: list[int] = []
    for piece in pieces:
        token_ids += piece
        if len(token_ids) >= count:
            break
    return token_ids[:count]


def measure_memory(name: str, token_ids: list[int]) -> Memory:
    """Build an automaton twice: once for the time, once for the memory."""
    started = perf_counter()
    SuffixAutomaton().extend(token_ids)
    seconds = perf_counter() - started
    tracemalloc.start()
    automaton = SuffixAutomaton()
    automaton.extend(token_ids)
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    count = len(token_ids)
    states = len(automaton.length)
    return Memory(name, num_bytes / count, states / count, seconds / count * 1e6)


def growing_with_a_model(vocab_size: int = 4096) -> Timed:
    """Trees of 64 nodes from given logits."""
    logits = 3.0 * torch.randn(MOST_NODES, vocab_size, generator=torch.Generator().manual_seed(0))
    request = _request([1])
    shape = best_shape(TYPICAL_ACCEPTANCE, 64, 6).shape
    plans = {
        "most probable": Plan(6, Drawing.GREEDY, num_nodes=64),
        "drawn": Plan(6, Drawing.SAMPLED, tree=shape),
    }

    def grown(plan: Plan) -> Draft:
        growth = start(request, plan)
        grow([growth], logits[:1], Randomness())
        while growth.frontier:
            growth.run_frontier()
            grow([growth], logits[: len(growth.frontier)], Randomness())
        return growth.finish()

    return {
        f"with a model, {name}, V={vocab_size}": partial(grown, plan)
        for name, plan in plans.items()
    }


def growing_trees() -> Timed:
    """Trees from a table of children, which costs nothing to look up."""
    request = _request([1])
    children = [
        [(token, share, (7 * state + token) % 64) for token, share in enumerate(RANK_SHARES)]
        for state in range(64)
    ]
    plans = {"best first": TREE, "static shape": SHAPE, "chain of 16": CHAIN}
    return {
        f"growing: {name}": lambda plan=plan: grow_on_host(  # type: ignore[misc]
            request, plan, 0, children.__getitem__
        )
        for name, plan in plans.items()
    }


def drafting(drafter: BaseDrafter, name: str, token_ids: list[int], num_tokens: int) -> Timed:
    """A new token and a draft, in a text of `num_tokens`."""
    request = _request(token_ids[:num_tokens])
    coming = cycle(token_ids[num_tokens:])
    source = Randomness()
    drafter.propose([request], [CHAIN], source)

    def draft(plan: Plan) -> Draft:
        request.token_ids.append(next(coming))
        return drafter.propose([request], [plan], source)[0]

    return {f"{name}: chain": lambda: draft(CHAIN), f"{name}: tree": lambda: draft(TREE)}


def automaton(name: str, token_ids: list[int], num_tokens: int) -> Timed:
    """The automaton's own operations, whatever the length of the match."""
    states = SuffixAutomaton()
    states.extend(token_ids[:num_tokens])
    coming = cycle(token_ids[num_tokens:])
    nothing: frozenset[int] = frozenset()
    request = _request([1])

    def append_and_chain() -> Draft:
        states.append(next(coming))
        return Draft.chain(states.chain(states.link[states.last], 16, nothing))

    def tree() -> Draft:
        return grow_on_host(request, TREE, states.link[states.last], states.children)

    return {
        f"{name}: append": lambda: states.append(next(coming)),
        f"{name}: append, chain of 16": append_and_chain,
        f"{name}: tree of 64": tree,
    }


def recycling(vocab_size: int) -> Timed:
    """Token recycling: learning from 17 rows of logits, then drafts of what it has learned."""
    drafter = TokenRecyclingDrafter(vocab_size)
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 17, vocab_size, generator=source)
    request = _request([3, 4])
    verdict = Verdict((), (4,), (Origin.RECOVERED,))
    tokens = torch.randint(vocab_size, (1024, 16), generator=source).tolist()
    drafts = cycle([Draft.chain(ids) for ids in tokens])

    def observe() -> None:
        drafter.observe([request], [next(drafts)], [verdict], ForwardOutput(logits))

    for first in range(0, vocab_size, 4096):
        ids = range(first, min(first + 4096, vocab_size))
        rows = torch.randn(1, len(ids) + 1, 256, generator=source)
        drafter.observe([_request([0, 0])], [Draft.chain(ids)], [verdict], ForwardOutput(rows))

    def propose(plan: Plan) -> Draft:
        return drafter.propose([request], [plan], Randomness())[0]

    name = f"token_recycling of {vocab_size:,}"
    return {
        f"{name}: observe 17 rows": observe,
        f"{name}: chain of 16": lambda: propose(CHAIN),
        f"{name}: tree of 64": lambda: propose(TREE),
    }


def in_turns(timed: Timed, repeats: int) -> list[Row]:
    """Time every operation once per turn."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    nodes: dict[str, list[int]] = {name: [] for name in timed}
    for turn in range(repeats + 3):
        for name, call in timed.items():
            started = perf_counter()
            result = call()
            ended = perf_counter()
            if turn >= 3:
                seconds[name].append(ended - started)
                if isinstance(result, Draft) and result is not NO_DRAFT:
                    nodes[name].append(len(result))
    return [
        Row(
            name,
            statistics.median(seconds[name]) * 1e6,
            statistics.median(nodes[name]) if nodes[name] else None,
        )
        for name in timed
    ]


def indexed(texts: Iterable[list[int]]) -> SuffixAutomaton:
    """A corpus of some texts."""
    corpus = SuffixAutomaton()
    for text in texts:
        corpus.extend(text)
        corpus.end_text()
    return corpus


def run(num_tokens: int, repeats: int) -> dict[str, Any]:
    """All figures."""
    rows = in_turns({**growing_trees(), **growing_with_a_model()}, repeats)
    memory, corpus = [], indexed(encoded_modules())
    for name, token_ids in texts(num_tokens).items():
        memory.append(measure_memory(name, token_ids[:num_tokens]))
        timed = automaton(f"automaton, {name}", token_ids, num_tokens)
        timed |= drafting(SuffixDrafter(), f"suffix, {name}", token_ids, num_tokens)
        quoting = SuffixDrafter(corpus=corpus)
        timed |= drafting(quoting, f"suffix with a corpus, {name}", token_ids, num_tokens)
        timed |= drafting(NgramDrafter(), f"ngram, {name}", token_ids, num_tokens)
        rows += in_turns(timed, repeats)
    for vocab_size in VOCAB_SIZES:
        rows += in_turns(recycling(vocab_size), repeats)
    return {
        "tokens": num_tokens,
        "repeats": repeats,
        "corpus_tokens": corpus.num_tokens,
        "bytes_per_token_allowed": BYTES_PER_TOKEN,
        "memory": [asdict(entry) for entry in memory],
        "rows": [asdict(row) for row in rows],
    }


def _request(token_ids: Sequence[int]) -> Request:
    return Request(0, list(token_ids), len(token_ids), SamplingParams(), seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_cost")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = run(options.tokens, options.repeats)
    if options.json:
        print(json.dumps(result))
        return
    operations: dict[str, Callable[[Any], str]] = {
        "operation": lambda row: row["what"],
        "median us": lambda row: f"{row['microseconds']:.1f}",
        "nodes": lambda row: "–" if row["nodes"] is None else f"{row['nodes']:.0f}",
    }
    print(as_markdown(long_table("", operations, result["rows"])))
    print(f"\nthe corpus is the standard library, {result['corpus_tokens']} tokens")
    print(f"\nautomata of {options.tokens} tokens; allowed: {BYTES_PER_TOKEN} bytes per token\n")
    automata: dict[str, Callable[[Any], str]] = {
        "text": lambda entry: entry["text"],
        "bytes a token": lambda entry: f"{entry['bytes_per_token']:.0f}",
        "states a token": lambda entry: f"{entry['states_per_token']:.2f}",
        "us a token": lambda entry: f"{entry['microseconds']:.2f}",
    }
    print(as_markdown(long_table("", automata, result["memory"])))


if __name__ == "__main__":
    main()
