"""What drafters without a model cost on the host: trees, suffix automata, token recycling, prompt lookup.

python -m forerun.bench.drafter_cost [--tokens 100000] [--repeats 400] [--json]

The operations on one text are timed in turns, each once a turn, and the medians over all turns are
printed. Trees grown with a model are timed without its forwards: ranking or drawing tokens from logits,
and all that is done with them. The texts are the zoo's held-out prompts, put together again and again
with one token in twenty changed, modules of the standard library, and one token repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from forerun.core import NO_DRAFT, Draft, Drawing, ForwardOutput, Origin, Plan, TreePlan, Verdict
from forerun.core import Sequence as Request
from forerun.drafters.base import BaseDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.suffix import BYTES_PER_TOKEN, SuffixDrafter
from forerun.drafters.suffix_automaton import SuffixAutomaton
from forerun.drafters.token_recycling import RANK_SHARES, TokenRecyclingDrafter
from forerun.models import load_tokenizer
from forerun.models.zoo import zoo_path
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.training.heldout import load_prompts
from forerun.trees import MOST_NODES
from forerun.trees.growth import grow, start
from forerun.trees.host import grow_on_host
from forerun.trees.search import TYPICAL_ACCEPTANCE, best_shape

CHAIN = Plan(16)
TREE = Plan(16, tree=TreePlan(64))
_SHAPE = best_shape(TYPICAL_ACCEPTANCE, 64, 16).shape
SHAPE = Plan(16, tree=TreePlan(len(_SHAPE), _SHAPE.parents))
VOCAB_SIZES = (4096, 151_936)

Timed = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    """One operation.

    Args:
        what: the operation.
        microseconds: the median over all turns.
        nodes: of the draft it made, the median; None where it makes none.
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


def texts(num_tokens: int) -> dict[str, list[int]]:
    """Token ids of each text, `num_tokens` of them and some for the turns."""
    # Not to be told that whole modules are longer than the zoo's context.
    tokenizer = load_tokenizer(zoo_path()).backend_tokenizer
    prompts = [one.prompt for one in load_prompts(zoo_path().parent / "heldout.jsonl")]
    pieces = [tokenizer.encode(prompt).ids for prompt in prompts]
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = (tokenizer.encode(one.read_text("utf-8")).ids for one in modules)
    wanted = num_tokens + num_tokens // 10
    return {
        "held-out prompts": _fill(_varied(pieces), wanted),
        "standard library": _fill(source, wanted),
        "one token": [1] * wanted,
    }


def _varied(pieces: list[list[int]]) -> Iterator[list[int]]:
    """The pieces in another order each time, one token in twenty taken from elsewhere."""
    source = random.Random(0)
    every = [token for piece in pieces for token in piece]
    while True:
        for piece in source.sample(pieces, len(pieces)):
            yield [source.choice(every) if source.random() < 0.05 else token for token in piece]


def _fill(pieces: Iterator[list[int]], count: int) -> list[int]:
    found: list[int] = []
    for piece in pieces:
        found += piece
        if len(found) >= count:
            break
    return found[:count]


def measure_memory(name: str, token_ids: list[int]) -> Memory:
    """Build an automaton twice: once for the time, once for the memory."""
    started = perf_counter()
    SuffixAutomaton().extend(token_ids)
    seconds = perf_counter() - started
    tracemalloc.start()
    automaton = SuffixAutomaton()
    automaton.extend(token_ids)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    count = len(token_ids)
    states = len(automaton.length)
    return Memory(name, held / count, states / count, seconds / count * 1e6)


def growing_with_a_model(vocab_size: int = 4096) -> Timed:
    """Trees of 64 nodes from logits that are there already."""
    logits = 3.0 * torch.randn(MOST_NODES, vocab_size, generator=torch.Generator().manual_seed(0))
    request = _request([1])
    shape = best_shape(TYPICAL_ACCEPTANCE, 64, 6).shape
    plans = {
        "most probable": Plan(6, Drawing.TOP, TreePlan(64)),
        "drawn": Plan(6, Drawing.DRAW, TreePlan(64, shape.parents)),
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
    """Trees from a table: what growing costs beside looking up."""
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
    """One more token and a draft, in a text of `num_tokens`."""
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
    grown = SuffixAutomaton()
    grown.extend(token_ids[:num_tokens])
    coming = cycle(token_ids[num_tokens:])
    nothing: frozenset[int] = frozenset()
    request = _request([1])

    def append_and_chain() -> Draft:
        grown.append(next(coming))
        return Draft.chain(grown.chain(grown.link[grown.last], 16, nothing))

    def tree() -> Draft:
        return grow_on_host(request, TREE, grown.link[grown.last], grown.children)

    return {
        f"{name}: append": lambda: grown.append(next(coming)),
        f"{name}: append, chain of 16": append_and_chain,
        f"{name}: tree of 64": tree,
    }


def recycling(vocab_size: int) -> Timed:
    """Token recycling: a round of 17 rows of logits, then drafts of what it has learned."""
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
    """Time every operation once a turn."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    nodes: dict[str, list[int]] = {name: [] for name in timed}
    for turn in range(repeats + 3):
        for name, call in timed.items():
            started = perf_counter()
            found = call()
            ended = perf_counter()
            if turn >= 3:
                seconds[name].append(ended - started)
                if isinstance(found, Draft) and found is not NO_DRAFT:
                    nodes[name].append(len(found))
    return [
        Row(
            name,
            statistics.median(seconds[name]) * 1e6,
            statistics.median(nodes[name]) if nodes[name] else None,
        )
        for name in timed
    ]


def run(num_tokens: int, repeats: int) -> dict[str, Any]:
    """All figures."""
    rows = in_turns({**growing_trees(), **growing_with_a_model()}, repeats)
    memory = []
    for name, token_ids in texts(num_tokens).items():
        memory.append(measure_memory(name, token_ids[:num_tokens]))
        timed = automaton(f"automaton, {name}", token_ids, num_tokens)
        timed |= drafting(SuffixDrafter(), f"suffix, {name}", token_ids, num_tokens)
        timed |= drafting(NgramDrafter(), f"ngram, {name}", token_ids, num_tokens)
        rows += in_turns(timed, repeats)
    for vocab_size in VOCAB_SIZES:
        rows += in_turns(recycling(vocab_size), repeats)
    return {
        "tokens": num_tokens,
        "repeats": repeats,
        "bytes_per_token_allowed": BYTES_PER_TOKEN,
        "memory": [asdict(one) for one in memory],
        "rows": [asdict(row) for row in rows],
    }


def _request(token_ids: Sequence[int]) -> Request:
    return Request(0, list(token_ids), len(token_ids), SamplingParams(), seed=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.drafter_cost")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = run(options.tokens, options.repeats)
    if options.json:
        print(json.dumps(found))
        return
    print("| operation | median us | nodes |\n| --- | --- | --- |")
    for row in found["rows"]:
        nodes = "–" if row["nodes"] is None else f"{row['nodes']:.0f}"
        print(f"| {row['what']} | {row['microseconds']:.1f} | {nodes} |")
    print(f"\nautomata of {options.tokens} tokens; allowed: {BYTES_PER_TOKEN} bytes a token\n")
    print("| text | bytes a token | states a token | us a token |\n| --- | --- | --- | --- |")
    for one in found["memory"]:
        print(
            f"| {one['text']} | {one['bytes_per_token']:.0f} | {one['states_per_token']:.2f} "
            f"| {one['microseconds']:.2f} |"
        )


if __name__ == "__main__":
    main()
