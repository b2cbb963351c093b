"""A target that drafts from less of its own cache, beside plain decoding, by context and setting.

python -m benchmarks.long_context --document FILE --question TEXT

A document, cut to each context, and a question behind it; greedy. The text is read once and kept as a
session, so that each run starts with the cache of its prompt. Settings and an engine without a drafter take
turns, each after a run of its own that is not counted. A number is plain seconds over the setting's from the
first token to the last, the median of the pairs, with their range; outputs must be the same ones. Loops
flatter drafts. With --coarse it drafts from the upper nibbles of an int8 cache (--sparse-coarse), and plain
decoding has that cache too. The most often repeated sequence of four tokens is printed with its count.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cold_homes import empty_home
from forerun.core import View
from forerun.drafters.self_sparse import DRAFT_VOCAB_SIZE, SelfSparseDrafter
from forerun.engine.chat import ChatTemplate
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.engine.requests import Completion
from forerun.measure.turns import in_turns
from forerun.params import SamplingParams

DOCUMENT = ("docs/choosing.md", "docs/methods.md", "docs/exactness.md", "docs/slower.md")
QUESTION = "Which drafters does the text above describe, and when does each of them pay?"


@dataclass(frozen=True)
class Setting:
    """How to draft: the view's window and blocks, tokens a round at most, the policy, whether codes are
    read coarsely, and how many of the vocabulary's first tokens are drafted (0: all)."""

    window: int
    blocks: int
    tokens: int
    policy: str = "fixed"
    coarse: bool = False
    vocab: int = DRAFT_VOCAB_SIZE

    def engine(self, plain: Engine) -> Engine:
        view = View(4, self.window, self.coarse, self.blocks)
        drafter = SelfSparseDrafter(plain.target, view, self.vocab)
        config = SpeculativeConfig(num_speculative_tokens=self.tokens, policy=self.policy)
        return Engine(plain.target, drafter, config, max_context=plain.max_context)


@dataclass(frozen=True)
class Row:
    """The result of one setting at one context.

    Args:
        context: tokens of the prompt.
        setting: how was drafted.
        speedup, least, most: plain seconds over the setting's, of the pairs.
        plain_rate: tokens a second of plain decoding, the median.
        accepted: of drafted tokens.
        drafted_rounds: share of rounds that drafted.
        draft_share, target_share: of the seconds of all rounds, drafting and the target's forward.
        identical: whether all outputs were those of plain decoding.
    """

    context: int
    setting: Setting
    speedup: float
    least: float
    most: float
    plain_rate: float
    accepted: float
    drafted_rounds: float
    draft_share: float
    target_share: float
    identical: bool


class Reading:
    """A document and a question in the cache of engines.

    Args:
        plain: the engine without a drafter.
        token_ids: of document and question.
        max_tokens: of each output.
        session: file that holds their keys and values once they have been read.
    """

    def __init__(self, plain: Engine, token_ids: list[int], max_tokens: int, session: Path) -> None:
        self.plain, self.token_ids, self.session = plain, token_ids, session
        self.params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        if session.exists():
            plain.sessions.load(session)
        else:
            plain.generate(token_ids, self.params, max_tokens=1)
            plain.sessions.save(session)
        self.output = plain.generate(token_ids, self.params)

    def most_repeated(self) -> tuple[tuple[int, ...], int]:
        """Four tokens of the output, and how often they occur."""
        ids = self.output.token_ids
        return Counter(zip(ids, ids[1:], ids[2:], ids[3:], strict=False)).most_common(1)[0]

    def measure(self, setting: Setting, pairs: int) -> Row:
        """Run a setting and plain decoding in turns."""
        engine = setting.engine(self.plain)
        engine.sessions.load(self.session)
        runs: list[Completion] = []

        def run() -> None:
            runs.append(engine.generate(self.token_ids, self.params))

        run()
        plain = partial(self.plain.generate, self.token_ids, self.params)
        turns = in_turns(plain, run, pairs)
        stats = runs[-1].stats
        rounds = stats.num_drafts + stats.num_plain_rounds
        return Row(
            len(self.token_ids),
            setting,
            turns.ratio,
            turns.least,
            turns.most,
            len(self.output.token_ids) / turns.plain,
            stats.num_accepted_tokens / max(stats.num_draft_tokens, 1),
            stats.num_drafts / rounds,
            stats.draft_seconds / stats.seconds,
            stats.target_seconds / stats.seconds,
            all(run.token_ids == self.output.token_ids for run in runs),
        )


def prompt_of(engine: Engine, document: str, question: str, context: int) -> list[int]:
    """About `context` tokens: the question behind as much of the document as fits.

    Raises:
        SystemExit: for a document that is shorter.
    """
    assert engine.tokenizer is not None, "loaded by name"
    ids = list(engine.tokenizer.encode(document))
    room = context - len(list(engine.tokenizer.encode(question))) - 40
    if len(ids) < room:
        raise SystemExit(f"the document has {len(ids)} tokens; give one of {room} or more.")
    text = f"{engine.tokenizer.decode(ids[:room])}\n\n{question}"
    template = ChatTemplate.of(engine.tokenizer)
    if template is None:
        return list(engine.tokenizer.encode(text))
    return list(template.encode([{"role": "user", "content": text}]))


def run(options: argparse.Namespace, sessions: Path) -> Iterator[Row]:
    """The rows of all contexts and settings; each context's output on the way, as a comment."""
    plain = load(
        options.model,
        False,
        kv_dtype="int8" if options.coarse else options.kv_dtype,
        max_context=max(options.contexts) + options.max_tokens + 64,
    )
    document = "\n\n".join(Path(name).read_text() for name in options.document)
    for context in options.contexts:
        ids = prompt_of(plain, document, options.question, context)
        reading = Reading(plain, ids, options.max_tokens, sessions / f"{context}.safetensors")
        grams, count = reading.most_repeated()
        assert plain.tokenizer is not None
        print(f"# {len(ids)} tokens; {count} x {plain.tokenizer.decode(list(grams))!r}")
        print(f"# {reading.output.text!r}", flush=True)
        views = itertools.product(options.windows, options.blocks)
        for (window, blocks), *rest in itertools.product(
            views, options.lengths, [options.policy], [options.coarse], options.vocabs
        ):
            yield reading.measure(Setting(window, blocks, *rest), options.pairs)


def line(row: Row) -> str:
    """A row for people."""
    setting = row.setting
    same = "same output" if row.identical else "ANOTHER OUTPUT"
    return (
        f"context {row.context}, window {setting.window}, {setting.blocks} blocks"
        f"{', coarse' * setting.coarse}, "
        f"{setting.tokens} tokens, {setting.vocab or 'all'} of the vocabulary, "
        f"{setting.policy}: {row.speedup:.2f} ({row.least:.2f}-{row.most:.2f}) of "
        f"{row.plain_rate:.0f} tokens/s; {row.accepted:.0%} accepted, {row.drafted_rounds:.0%} of "
        f"rounds drafted; {row.draft_share:.0%} drafting, {row.target_share:.0%} target; {same}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--document", nargs="+", default=list(DOCUMENT), help="UTF-8 files")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 2000, 4000, 7600])
    parser.add_argument("--windows", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--blocks", type=int, nargs="+", default=[0])
    parser.add_argument("--vocabs", type=int, nargs="+", default=[DRAFT_VOCAB_SIZE], help="0: all")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--kv-dtype", default="auto", help="of the cache, int8 with --coarse")
    parser.add_argument("--coarse", action="store_true", help="draft from upper nibbles")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--sessions", type=Path, help="folder that keeps what has been read")
    parser.add_argument("--json", type=Path, help="file for the rows")
    options = parser.parse_args(arguments)
    rows = []
    with TemporaryDirectory() as folder, empty_home():
        for row in run(options, options.sessions or Path(folder)):
            print(line(row), flush=True)
            rows.append(asdict(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
