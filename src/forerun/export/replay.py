"""Numeric replay: a head's forward as each engine reads it, compared with the forward as trained.

The checks name what an engine reads differently. The replay runs the head on a text of the target and
measures the cost: how many drafts stay the same, and how many equal the target's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.core import Batch
from forerun.errors import CheckpointError, UnsupportedModelError, shown
from forerun.export.differences import because, differing
from forerun.export.dspark_forward import dspark_forward
from forerun.export.eagle3_forward import eagle3_forward
from forerun.export.findings import EVERY, TITLES, VERSIONS, Finding, Severity
from forerun.export.forwards import Drafted, Text, rotation_of
from forerun.export.head import PublishedHead
from forerun.export.readings import DSparkReading, Eagle3Reading, Reading, reading_of
from forerun.export.sizes import MOST_BLOCK, rope_of, sizes_of, whole
from forerun.export.target import Target
from forerun.models.architecture import ACTIVATIONS, ROPE_TYPES, read_architecture
from forerun.models.config import one_line
from forerun.models.rope import frequencies

TOKENS = 64
# Position of a block drafter's first anchor, and distance between anchors, in tokens.
_FIRST_ANCHOR, _ANCHOR_STEP = 8, 4
# Largest difference of logits, and least agreement of drafts, that count as rounding.
_SAME_LOGITS = 1e-2
_SAME_DRAFTS = 0.99


@dataclass(frozen=True)
class Replay:
    """A head's drafts in one engine, compared with those of the head as trained.

    Attributes:
        engine: name of the engine.
        loads: True if the engine loads the head.
        agreement: share of drafts that stay the same; None if the head was not run.
        difference: largest difference of logits; None if they are over different tokens.
        hits: share of drafts after the prompt that equal the target's most likely token.
        trained_hits: the same share for the head as trained.
        verdict: verdict in words.
    """

    engine: str
    loads: bool
    agreement: float | None
    difference: float | None
    hits: float | None
    trained_hits: float
    verdict: str

    @property
    def sound(self) -> bool:
        """True if the engine loads the head and drafts as it was trained to."""
        return self.loads and self.agreement is not None and self.agreement >= _SAME_DRAFTS


def observe(
    model: CausalLM, token_ids: Sequence[int], layers: Sequence[int], start: int = 0
) -> Text:
    """Run the target over a text, and keep its hidden layers and logits.

    Args:
        start: index of the first token after the prompt.
    """
    cache = model.new_cache(1, len(token_ids))
    wanted = tuple(sorted(set(layers)))
    batch = Batch.after(cache, [0], [list(token_ids)], hidden_layers=wanted)
    output = model.forward(batch, cache)
    assert output.logits is not None  # Asked for.

    def embed(ids: Tensor) -> Tensor:
        return model.embed(ids[None].to(model.device))[0].float().cpu()

    def lm_head(states: Tensor) -> Tensor:
        flat = states.reshape(1, -1, states.shape[-1]).to(model.device, model.dtype)
        return model.lm_head(flat)[0].float().cpu().reshape(*states.shape[:-1], -1)

    return Text(
        token_ids=torch.tensor(list(token_ids)),
        hidden={layer: output.hidden[layer][0].float().cpu() for layer in wanted},
        logits=output.logits[0].float().cpu(),
        embed=embed,
        lm_head=lm_head,
        start=start,
    )


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


def draft(head: PublishedHead, target: Target, reading: Reading, text: Text) -> Drafted:
    """Drafts of a head for a text under a reading.

    Raises:
        UnsupportedModelError: for an unknown rotary embedding or activation.
        CheckpointError: for sizes that contradict each other.
    """
    sizes = sizes_of(head, target)
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in head.weights.items()
    }
    rotation = _rotation(head, target, reading.theta)
    if isinstance(reading, Eagle3Reading):
        if reading.activation not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"hidden_act {shown(reading.activation)} is not computed here; known: "
                f"{', '.join(ACTIVATIONS)}."
            )
        return eagle3_forward(weights, sizes, reading, text, rotation)
    inner = head.nested("dflash_config").get("mask_token_id")
    mask = head.config.get("mask_token_id", inner)
    anchors = range(min(_FIRST_ANCHOR, len(text) - 2), len(text) - 1, _ANCHOR_STEP)
    return dspark_forward(
        weights,
        sizes,
        reading,
        text,
        rotation,
        mask_token_id=int(mask or 0),
        block_size=whole(head.config, "block_size", most=MOST_BLOCK),
        anchors=anchors,
    )


def layers_read(head: PublishedHead, target: Target, engines: Sequence[str]) -> set[int]:
    """Hidden layers that any reading of a head needs."""
    readings = [reading_of(head, target, engine) for engine in (None, *engines)]
    return {layer for reading in readings for layer in reading.hidden_layers}


def replay(
    head: PublishedHead,
    target: Target,
    text: Text,
    engines: Sequence[str] = tuple(VERSIONS),
    findings: Sequence[Finding] = (),
) -> list[Replay]:
    """Run a head as each engine reads it.

    Args:
        text: a text with the hidden layers of `layers_read`.
        findings: findings of the check; an engine that does not load the head is not run.

    Raises:
        UnsupportedModelError: for a head that cannot be run here.
        CheckpointError: for sizes that contradict each other.
    """
    trained = reading_of(head, target)

    def run(reading: Reading) -> Drafted:
        return draft(head, target, reading, text)

    reference = run(trained)
    results = []
    for engine in engines:
        blocking = [
            finding
            for finding in findings
            if finding.severity is Severity.ERROR and finding.engine in (EVERY, engine)
        ]
        read = reading_of(head, target, engine)
        if blocking:
            verdict = f"does not load in {TITLES[engine]}: {blocking[0].problem}"
            hits = _hits(reference, text)
            results.append(Replay(engine, False, None, None, None, hits, verdict))
        elif unset := _unset(head, engine, findings):
            # Such an engine computes with uninitialized memory, which cannot be replayed.
            verdict = f"loads in {TITLES[engine]} and drafts rubbish, because {unset}"
            results.append(Replay(engine, True, None, None, None, _hits(reference, text), verdict))
        else:
            results.append(_compare(engine, trained, read, run, reference, text))
    return results


def _unset(head: PublishedHead, engine: str, findings: Sequence[Finding]) -> str:
    """The problem of a missing tensor that an engine does not notice; empty if there is none."""
    for finding in findings:
        here = finding.severity is Severity.WRONG and finding.engine in (EVERY, engine)
        lacks_head = finding.trap == "lm_head" and "lm_head.weight" not in head.weights
        if here and (lacks_head or finding.trap == "missing_tensor"):
            return finding.problem
    return ""


def _compare(
    engine: str,
    trained: Reading,
    read: Reading,
    run: Callable[[Reading], Drafted],
    reference: Drafted,
    text: Text,
) -> Replay:
    drafted = run(read)
    agreement, difference = agreement_of(reference, drafted)
    hits, trained_hits = _hits(drafted, text), _hits(reference, text)
    title, fields = TITLES[engine], differing(trained, read)
    if agreement >= _SAME_DRAFTS and (difference or 0.0) < _SAME_LOGITS:
        verdict = f"loads in {title} and drafts as it was trained"
    else:
        alone = [_alone(field, trained, read, run, reference) for field in fields]
        causes = [field for field, same in zip(fields, alone, strict=True) if same < 1] or fields
        reasons = ", and ".join(because(field, engine, trained, read) for field in causes)
        how = (
            "rubbish"
            if agreement < 0.5
            else "badly"
            if agreement < _SAME_DRAFTS
            else "a little off"
        )
        verdict = f"loads in {title} and drafts {how}, because {reasons}"
    return Replay(engine, True, agreement, difference, hits, trained_hits, verdict)


def _alone(
    field: str,
    trained: Reading,
    read: Reading,
    run: Callable[[Reading], Drafted],
    reference: Drafted,
) -> float:
    """Agreement if only this field is read as the engine reads it."""
    changed: Eagle3Reading | DSparkReading = replace(trained, **{field: getattr(read, field)})
    return agreement_of(reference, run(changed))[0]


def agreement_of(one: Drafted, other: Drafted) -> tuple[float, float | None]:
    """Share of places with the same drafted token, and the largest difference of logits.

    The difference is None if the logits are over different tokens. Places that only one of the two drafts
    for do not count.
    """
    places = min(len(one.follows), len(other.follows))
    if not torch.equal(one.follows, other.follows):
        return _aligned(one, other), None
    same = (one.tokens == other.tokens)[:places].float().mean().item()
    if one.logits.shape != other.logits.shape:
        return same, None
    return same, (one.logits - other.logits).abs().max().item()


def _aligned(one: Drafted, other: Drafted) -> float:
    """Agreement of block drafts of different lengths, comparing the n-th drafts after each token."""
    known = _by_place(one)
    pairs = [(known[place], token) for place, token in _by_place(other).items() if place in known]
    return sum(first == second for first, second in pairs) / max(1, len(pairs))


def _by_place(drafted: Drafted) -> dict[tuple[int, int], int]:
    seen: dict[int, int] = {}
    places = {}
    for follows, token in zip(drafted.follows.tolist(), drafted.tokens.tolist(), strict=True):
        places[follows, seen.get(follows, 0)] = token
        seen[follows] = seen.get(follows, 0) + 1
    return places


def _hits(drafted: Drafted, text: Text) -> float:
    own = text.logits.argmax(-1)[drafted.follows]
    counted = drafted.follows >= min(text.start, len(text) - 2)
    return (own == drafted.tokens)[counted].float().mean().item()


def _rotation(
    head: PublishedHead, target: Target, theta: float
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    from transformers import LlamaConfig

    sizes, rope = sizes_of(head, target), rope_of(head)
    if rope["rope_type"] not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"the rotary embedding of {head.name} is {shown(rope['rope_type'])}, which is not computed here; "
            f"known: {', '.join(ROPE_TYPES)}."
        )
    try:
        config = LlamaConfig(
            hidden_size=sizes.hidden_size,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            max_position_embeddings=head.layers.get("max_position_embeddings")
            or target.max_context,
            rope_parameters={**rope, "rope_theta": theta},
        )
        return rotation_of(*frequencies(read_architecture(config)))
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(
            f"the rotary embedding of {head.name} is incomplete ({one_line(problem)})."
        ) from problem
