"""Numeric replay: a head's forward as each engine reads it, compared with the forward as trained.

The checks name what an engine reads differently. The replay runs the head on a text of the target and
measures the cost: how many drafts stay the same, and how many equal the target's own tokens. It runs
forerun's own module of the head, with the config and tensors that make it compute what the engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.export.export import config_of, target_ids
from forerun.export.head import EVERY, TITLES, VERSIONS, Finding, PublishedHead, Severity, Target
from forerun.export.readings import Reading, because, differing, reading_of
from forerun.heads.eagle3 import Eagle3Config, Eagle3Head

TOKENS = 64
# Tokens of the chain that the head drafts after each token of the text.
_STEPS = 3
# Least agreement of drafts that counts as rounding.
_SAME_DRAFTS = 0.99


@dataclass(frozen=True, eq=False)
class ObservedText:
    """A text with the target's hidden states and logits.

    Attributes:
        model: the target.
        token_ids: token ids.
        hidden: hidden states by layer, [n, H]; layer i is the output of the target's first i layers.
        logits: the target's logits, [n, V].
        start: index of the first token after the prompt, from which the tokens are the target's own.
    """

    model: CausalLM
    token_ids: list[int]
    hidden: dict[int, Tensor]
    logits: Tensor
    start: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def states(self, layers: Sequence[int]) -> Tensor:
        """Hidden states of some layers side by side, [n, W]."""
        return torch.cat([self.hidden[layer] for layer in layers], -1)


@dataclass(frozen=True, eq=False)
class Drafted:
    """Drafts of a head for a text.

    Attributes:
        logits: logits over the draft's vocabulary, [m, Vd].
        target_ids: target token of each column, [Vd]; -1 for a column without a token.
        follows: index of the token of the text that each draft follows, [m].
    """

    logits: Tensor
    target_ids: Tensor
    follows: Tensor

    @property
    def tokens(self) -> Tensor:
        """The most likely draft of each row, as a target token, [m]."""
        return self.target_ids[self.logits.argmax(-1)]


@dataclass(frozen=True)
class Replay:
    """A head's drafts in one engine, compared with those of the head as trained.

    Attributes:
        engine: name of the engine.
        loads: True if the engine loads the head.
        agreement: share of drafts that stay the same; None if the head was not run.
        hits: share of drafts after the prompt that equal the target's most likely token.
        trained_hits: the same share for the head as trained.
        verdict: verdict in words.
    """

    engine: str
    loads: bool
    agreement: float | None
    hits: float | None
    trained_hits: float
    verdict: str

    @property
    def sound(self) -> bool:
        """True if the engine loads the head and drafts as it was trained to."""
        return self.loads and self.agreement is not None and self.agreement >= _SAME_DRAFTS


def observe(
    model: CausalLM, token_ids: Sequence[int], layers: Sequence[int], start: int = 0
) -> ObservedText:
    """Run the target over a text, and keep its hidden layers and logits.

    Args:
        model: the target.
        token_ids: the text.
        layers: the hidden layers to keep.
        start: index of the first token after the prompt.
    """
    cache = model.new_cache(1, len(token_ids))
    wanted = tuple(sorted(set(layers)))
    batch = Batch.after(cache, [0], [list(token_ids)], hidden_layers=wanted)
    output = model.forward(batch, cache)
    assert output.logits is not None  # Asked for.
    hidden = {layer: output.hidden[layer][0] for layer in wanted}
    return ObservedText(model, list(token_ids), hidden, output.logits[0].float().cpu(), start)


def go_on(model: CausalLM, token_ids: Sequence[int], length: int) -> list[int]:
    """Continue `token_ids` greedily with the target, to a text of `length` tokens."""
    text = list(token_ids[: length - 1])
    cache = model.new_cache(1, length)
    pending = text
    while len(text) < length:
        output = model.forward(Batch.after(cache, [0], [pending], logits_for="last"), cache)
        assert output.logits is not None  # Asked for.
        pending = [int(output.logits[0, -1].argmax())]
        text = [*text, *pending]
    return text


def draft(head: PublishedHead, target: Target, reading: Reading, text: ObservedText) -> Drafted:
    """Drafts of a head for a text under a reading, after the text's own tokens in place of earlier drafts.

    Chains begin after every token; the k-th drafts of all come before the next ones.

    Args:
        head: the head.
        target: facts about its target.
        reading: how the head is read.
        text: a text with the hidden layers of the reading; the head runs on its target's backend.

    Raises:
        UnsupportedModelError: for an unknown rotary embedding or activation.
        CheckpointError: for sizes that contradict each other.
    """
    config = Eagle3Config.read(config_of(head, target, reading), head.name)
    module = Eagle3Head(text.model, config, _tensors(head, reading, text.model), head.name)
    count, tokens = len(text) - 1, text.token_ids
    cache = module.new_cache(1, count + _STEPS)
    fused = module.fuse(text.states(reading.hidden_layers)[None, :-1])[0]
    first = module.run([0], [fused], [tokens[1:]], cache)[0]
    later: list[list[Tensor]] = [[] for _ in range(_STEPS - 1)]
    for place in reversed(range(count)):
        cache.trim(0, place + 1)
        hidden = first[place : place + 1]
        for step in range(1, min(_STEPS, count - place)):
            hidden = module.run([0], [hidden], [[tokens[place + 1 + step]]], cache)[0]
            later[step - 1].append(hidden)
    outputs = [first, *(torch.cat(own[::-1]) for own in later if own)]
    follows = [torch.arange(1 + step, len(text)) for step in range(len(outputs))]
    logits = module.logits(torch.cat(outputs)).float().cpu()
    drafted, _ = head.vocab_sizes
    if reading.lm_head == "target" and drafted < logits.shape[-1]:
        logits = logits[:, target_ids(head, reading.draft_ids, drafted)].contiguous()
    ids = target_ids(head, reading.draft_ids, logits.shape[-1])
    return Drafted(logits, ids, torch.cat(follows))


def _tensors(head: PublishedHead, reading: Reading, model: CausalLM) -> dict[str, Tensor]:
    """The tensors with which forerun's own module computes what a reading says."""
    # The vocabulary is mapped later, because a misread one may lead to no token of the target.
    left_out = {"d2t", "t2d"}
    if reading.lm_head != "own":
        left_out.add("lm_head.weight")
    if not reading.norm_before_fc:
        left_out.add("input_norm.weight")
    if not reading.fc_bias:
        left_out.add("fc.bias")
    tensors = {
        name: own
        for name, own in head.weights.items()
        if name not in left_out and (reading.qkv_bias or not name.endswith("_proj.bias"))
    }
    if reading.lm_head == "embedding":
        every = torch.arange(model.vocab_size, device=model.device)[None]
        own = tensors.get("embed_tokens.weight")
        tensors["lm_head.weight"] = model.embed(every)[0].float().cpu() if own is None else own
    for index in range(1, head.eagle3.layers.num_layers):
        prefix, usual = f"layers.{index}", f"layers.{index}.input_layernorm.weight"
        ones = torch.ones_like(tensors[usual])
        tensors[usual] = tensors.get(f"{prefix}.{reading.later_norm}.weight", ones)
    return tensors


def layers_read(head: PublishedHead, target: Target, engines: Sequence[str]) -> set[int]:
    """Hidden layers that any reading of a head needs."""
    readings = [reading_of(head, target, engine) for engine in (None, *engines)]
    return {layer for reading in readings for layer in reading.hidden_layers}


def run_readings(
    head: PublishedHead,
    target: Target,
    text: ObservedText,
    engines: Sequence[str] = tuple(VERSIONS),
    findings: Sequence[Finding] = (),
) -> list[Replay]:
    """Run a head as each engine reads it.

    Args:
        head: the head.
        target: facts about its target.
        text: a text with the hidden layers of `layers_read`.
        engines: the engines.
        findings: findings of the check; an engine that does not load the head is not run.

    Raises:
        UnsupportedModelError: for a head that cannot be run here.
        CheckpointError: for sizes that contradict each other.
    """
    trained = reading_of(head, target)
    reference = draft(head, target, trained, text)
    trained_hits = _hits(reference, text)

    def replay(engine: str) -> Replay:
        relevant = [finding for finding in findings if finding.engine in (EVERY, engine)]
        errors = [finding for finding in relevant if finding.severity is Severity.ERROR]
        if errors:
            verdict = f"does not load in {TITLES[engine]}: {errors[0].problem}"
            return Replay(engine, False, None, None, trained_hits, verdict)
        if unset := _unset(head, relevant):
            # Such an engine computes with uninitialized memory, which cannot be replayed.
            verdict = f"loads in {TITLES[engine]} and drafts rubbish, because {unset}"
            return Replay(engine, True, None, None, trained_hits, verdict)
        read = reading_of(head, target, engine)
        drafted = draft(head, target, read, text)
        agreement = (drafted.tokens == reference.tokens).float().mean().item()
        verdict = _verdict(engine, trained, read, agreement)
        return Replay(engine, True, agreement, _hits(drafted, text), trained_hits, verdict)

    return [replay(engine) for engine in engines]


def _unset(head: PublishedHead, findings: Sequence[Finding]) -> str:
    """The problem of a missing tensor that an engine does not notice; empty if there is none."""
    for finding in findings:
        lacks_head = finding.trap == "lm_head" and "lm_head.weight" not in head.weights
        missing = lacks_head or finding.trap == "missing_tensor"
        if missing and finding.severity is Severity.WRONG:
            return finding.problem
    return ""


def _verdict(engine: str, trained: Reading, read: Reading, agreement: float) -> str:
    """Verdict on an engine's drafts in words, with the settings that are to blame."""
    title = TITLES[engine]
    if agreement >= _SAME_DRAFTS:
        return f"loads in {title} and drafts as it was trained"
    fields = differing(trained, read)
    reasons = ", and ".join(because(field, engine, trained, read) for field in fields)
    return f"loads in {title} and drafts {'badly' if agreement >= 0.5 else 'rubbish'}, because {reasons}"


def _hits(drafted: Drafted, text: ObservedText) -> float:
    own = text.logits.argmax(-1)[drafted.follows]
    counted = drafted.follows >= min(text.start, len(text) - 2)
    return (own == drafted.tokens)[counted].float().mean().item()
