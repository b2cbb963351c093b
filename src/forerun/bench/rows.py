"""Measured pairs: runs of a setting and of plain decoding on the same prompts, and the format of their
file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, PositiveInt, TypeAdapter, ValidationError

from forerun.bench.runs import EncodedPrompt, Timed
from forerun.core import Stats
from forerun.errors import ConfigError
from forerun.measure.ledger import Format

PLAIN = "plain"
Place = tuple[str, float, int]
"""A setting at a temperature, with so many requests at once."""


@dataclass(frozen=True)
class PairKey:
    """Identity of a measurement.

    Args:
        setting: name of the setting.
        temperature: temperature of the sampler.
        batch: number of requests at once.
        category: category of the prompts.
        prompts: ids of the prompts, in order.
    """

    setting: str
    temperature: float
    batch: int
    category: str
    prompts: tuple[str, ...]

    @property
    def place(self) -> Place:
        """Setting, temperature and number of requests."""
        return self.setting, self.temperature, self.batch


@dataclass(frozen=True)
class Side:
    """One side of a pair.

    Args:
        tokens: number of tokens of all requests.
        seconds: time until the last token, prefill and drafting included.
        first: seconds to the first token, the median over the requests; None if unknown.
        gaps: milliseconds between arrivals of tokens, of all requests one after the other.
        stages: seconds by stage; host is the time in none of the others.
    """

    tokens: PositiveInt
    seconds: Annotated[float, Field(gt=0, lt=math.inf)]
    first: float | None
    gaps: tuple[float, ...]
    stages: dict[str, float]

    @property
    def rate(self) -> float:
        """Generated tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class MeasuredPair:
    """A pair of runs.

    Args:
        key: identity of the measurement.
        digest: digest of the prompts' token ids.
        side, plain: times of the setting, and of plain decoding just before it.
        stats: counters of the setting.
        loops: number of plain outputs that repeat themselves.
        identical: number of outputs equal to plain decoding's; None if sampling makes that meaningless.
        differences: causes of the others: `numerics` or `defect`.
        error: reason for which the measurement failed; None if it did not.
    """

    key: PairKey
    digest: str
    side: Side | None = None
    plain: Side | None = None
    stats: Stats | None = None
    loops: int = 0
    identical: int | None = None
    differences: tuple[str, ...] = ()
    error: str | None = None

    @property
    def speedup(self) -> float:
        """Ratio of tokens a second: outputs may differ in length."""
        assert self.side is not None
        assert self.plain is not None
        return self.side.rate / self.plain.rate

    def as_dict(self) -> dict[str, Any]:
        """Content of the row's line in a file."""
        content: dict[str, Any] = {name: value for name, value in asdict(self).items() if value}
        content["identical"] = self.identical
        if self.stats is not None:
            content |= {"stats": asdict(self.stats), **serving_keys(self.stats)}
        return content

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> MeasuredPair:
        """A row of what `as_dict` has written.

        Raises:
            ValueError: for anything else.
        """
        try:
            row = _CONTENT.validate_python(content)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from None
        if (row.side is None) == (row.error is None) or (row.side is None) != (row.plain is None):
            raise ValueError("a row holds two sides or an error")
        return row


_CONTENT = TypeAdapter(MeasuredPair)
ROWS = Format(
    mark="forerun_bench",
    version=1,
    command="forerun bench",
    error=ConfigError,
    content=MeasuredPair.as_dict,
    parse=MeasuredPair.from_dict,
)
"""Format of a file of rows; the header holds what makes figures comparable with each other."""


def serving_keys(stats: Stats) -> dict[str, Any]:
    """Acceptance of a run under the names of `vllm bench serve`.

    The acceptance rate is in per cent, and the acceptance length is 1 + accepted / drafts, the bonus token
    always counted.
    """
    drafts, accepted = stats.num_drafts, stats.num_accepted_tokens
    if not drafts:
        return {"spec_decode_num_drafts": 0}
    return {
        "spec_decode_acceptance_rate": 100 * accepted / stats.num_draft_tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": stats.num_draft_tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            count / drafts for count in stats.num_accepted_tokens_per_pos
        ],
    }


def digest_of(prompts: Sequence[EncodedPrompt]) -> str:
    """A short name for the token ids of prompts."""
    text = json.dumps([prompt.token_ids for prompt in prompts])
    return sha256(text.encode()).hexdigest()[:12]


def side_of(run: Timed) -> Side:
    """One side from its run."""
    stats = run.stats
    stages = {
        "prefill": stats.prefill_seconds,
        "draft": stats.draft_seconds,
        "target": stats.target_seconds,
        "verify": stats.verify_seconds,
    }
    if not stats.target_seconds:
        # The plain loop counts no stages of its rounds.
        stages["target"] = stats.seconds
    stages["host"] = max(0.0, run.seconds - sum(stages.values()))
    firsts = sorted(arrivals[0] for arrivals in run.arrivals if arrivals)
    return Side(
        tokens=run.tokens,
        seconds=run.seconds,
        first=firsts[len(firsts) // 2] if firsts else None,
        gaps=tuple(
            round(1e3 * (later - sooner), 3)
            for arrivals in run.arrivals
            for sooner, later in pairwise(arrivals)
        ),
        stages={name: round(seconds, 7) for name, seconds in stages.items()},
    )


def loops(token_ids: Sequence[int]) -> bool:
    """True if an output repeats itself: some 4-gram occurs more than 8 times."""
    grams = zip(token_ids, token_ids[1:], token_ids[2:], token_ids[3:], strict=False)
    return max(Counter(grams).values(), default=0) > 8
