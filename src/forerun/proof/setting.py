"""What is to be proven: the rule that the engine takes, and the outputs to draw under it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forerun.contracts import Drafter
from forerun.core import Drawing
from forerun.engine.config import SpeculativeConfig
from forerun.engine.engine import Engine
from forerun.params import SamplingParams
from forerun.verification import AUTO


@dataclass(frozen=True)
class Setting:
    """What to test and how much of it.

    Args:
        rule: the name of the verification rule; never `auto`.
        params: how tokens are drawn; seeds, stops and lengths are set here.
        num_tokens: emitted tokens to test, at least.
        output_tokens: of every output.
        level: probability of a false alarm over all tests together, for each look.
        seed: of everything: equal settings give equal results.
    """

    rule: str
    params: SamplingParams
    num_tokens: int
    output_tokens: int
    level: float = 0.01
    seed: int = 0


def resolved_rule(config: SpeculativeConfig, drafter: Drafter | type[Drafter]) -> str:
    """The rule that the engine would take for a sampled request without a seed."""
    if config.rejection_sample_method != AUTO:
        return config.rejection_sample_method
    draws = Drawing.DRAW in drafter.drawings and config.draft_sample_method != "greedy"
    return "block" if draws and not drafter.draws_trees else "token"


def with_rule(engine: Engine, rule: str) -> Engine:
    """The engine, or one of the same parts under another rule."""
    if engine.config.rejection_sample_method == rule:
        return engine
    other = Engine(
        engine.target,
        engine.drafter,
        replace(engine.config, rejection_sample_method=rule),
        tokenizer=engine.tokenizer,
        eos_token_ids=engine.eos_token_ids,
        max_batch_size=engine.max_batch_size,
        max_context=engine.max_context,
    )
    other.rules.update(engine.rules)
    return other
