"""Rules of published EAGLE-3 heads (arXiv 2503.01840, with EAGLE-3.1's flags), engine by engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from forerun.errors import CheckpointError, UnsupportedModelError
from forerun.export.head import (
    AUX,
    CONFIG,
    EVERY,
    LLAMA_CPP,
    SGLANG,
    TITLES,
    VERSIONS,
    VLLM,
    Finding,
    PublishedHead,
    Target,
    error,
    for_engines,
    note,
    wrong,
)
from forerun.export.readings import looks_absolute, reading_findings, rope_of, same_rope
from forerun.heads.config import layer_ids
from forerun.heads.files import flaws
from forerun.heads.layers import Shapes

_TYPES = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
_SMALL = {torch.int64, torch.int32, torch.int16, torch.bool}
_SPECULATORS = frozenset({"Eagle3Speculator", "Eagle3DraftModel"})
_NAMES = {
    VLLM: {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"},
    SGLANG: {"LlamaForCausalLMEagle3"},
    LLAMA_CPP: {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"},
}
"""Architectures that each engine knows, besides those of speculators."""


def check_head(
    head: PublishedHead, target: Target, engines: Sequence[str] = tuple(VERSIONS)
) -> list[Finding]:
    """Find everything that is wrong with a head for some engines, the worst first; nothing is run.

    Raises:
        UnsupportedModelError: for a head of another kind.
    """
    head.check_kind()
    return for_engines(_findings(head, target), engines)


def _findings(head: PublishedHead, target: Target) -> Iterator[Finding]:
    try:
        yield from _rules(head, target)
    except CheckpointError as failure:
        yield from error(EVERY, "config", str(failure).removesuffix("."), "correct config.json")
    except UnsupportedModelError as failure:
        reason, _, remedy = str(failure).removesuffix(".").rpartition("; ")
        yield from note(EVERY, "config", f"forerun does not run it: {reason}", remedy)


def _rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Apply all rules.

    Raises:
        CheckpointError, UnsupportedModelError: for a config that forerun does not read.
    """
    yield from _format_rules(head)
    yield from _flag_rules(head)
    yield from _id_rules(head, target)
    required, optional = head.eagle3.shapes(), head.eagle3.optional()
    biases = {name for name in required if name.endswith("_proj.bias")}
    allowed = {name: optional[name] for name in ("embed_tokens.weight", "lm_head.weight")}
    allowed |= {name: required.pop(name) for name in biases}
    yield from _target_rules(head, target)
    yield from _tensor_rules(head, required, allowed)
    yield from value_rules(head)
    yield from _vocabulary_rules(head)
    yield from _rope_rules(head)
    yield from _layer_rules(head)
    yield from _lm_head_rules(head)
    yield from reading_findings(head, target)


def _format_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check that each engine reads the format of the config, and has a class for the architecture."""
    for engine, known in _NAMES.items():
        if head.wrapped and engine != LLAMA_CPP:
            continue
        names = known | _SPECULATORS if head.wrapped else known
        if not names & set(head.architectures):
            named = ", ".join(head.architectures) or "none"
            problem = f"{{engine}} has no class for architectures {named}"
            remedy = f"write {' or '.join(sorted(names))}"
            yield from error(engine, "architectures", problem, remedy)
    if head.wrapped:
        problem = "the config is in the format of speculators, which SGLang does not read"
        remedy = "write a copy with `forerun export`"
        yield from error(SGLANG, "speculators_format", problem, remedy)
        yield from _wrapper_rules(head)
    elif not head.config.get("model_type"):
        problem = "config.json has no model_type, by which {engine} finds the config's class"
        remedy = "write llama"
        yield from error((VLLM, SGLANG), "model_type", problem, remedy)


def _wrapper_rules(head: PublishedHead) -> Iterator[Finding]:
    if not isinstance(head.config.get("transformer_layer_config"), dict):
        problem = "the config has no transformer_layer_config"
        yield from error(
            EVERY, "speculators_format", problem, "write the config of the layers there"
        )
    outer = head.nested("speculators_config")
    verifier: Any = outer.get("verifier")
    if not isinstance(verifier, dict) or not isinstance(outer.get("proposal_methods"), list):
        problem = "speculators_config names no verifier or no proposal_methods"
        yield from error(VLLM, "speculators_format", problem, "write both")


def _flag_rules(head: PublishedHead) -> Iterator[Finding]:
    inner = head.nested("eagle_config")
    if head.config.get("fc_norm") or inner.get("fc_norm"):
        problem = "llama.cpp has no norm for each fused feature (fc_norm, EAGLE-3.1)"
        remedy = "train without fc_norm, or do not serve the head there"
        yield from error(LLAMA_CPP, "fc_norm", problem, remedy)
    if "norm_before_residual" not in head.config:
        problem = (
            "norm_before_residual is not named: in the format of speculators vLLM takes true for it, "
            "llama.cpp false"
        )
        report = wrong if head.wrapped else note
        yield from report(EVERY, "norm_before_residual", problem, "write it into config.json")


def _layer_rules(head: PublishedHead) -> Iterator[Finding]:
    count = head.eagle3.layers.num_layers
    if count > 1:
        problem = f"the head has {count} layers, but llama.cpp runs one"
        yield from error(LLAMA_CPP, "num_layers", problem, "train one layer")
    activation = head.layers.get("hidden_act", "silu")
    if activation != "silu":
        problem = f"hidden_act is {activation}, but {{engine}} has silu alone here"
        yield from error((VLLM, SGLANG), "activation", problem, "train with silu")
    for bias in ("fc.bias", "layers.0.self_attn.q_proj.bias"):
        if bias in head.weights:
            problem = f"{bias} is there, but llama.cpp has no such bias"
            yield from error(LLAMA_CPP, "bias", problem, "train without it")
    if head.layers.get("attention_bias") and "layers.0.self_attn.q_proj.bias" not in head.weights:
        problem = "attention_bias is true, but there are no biases, and vLLM adds what memory held"
        yield from wrong(VLLM, "bias", problem, "write attention_bias=false")
    kind = head.layers.get("model_type")
    if kind not in (None, "llama"):
        problem = f"the layers are of model_type {kind}, but {{engine}} builds Llama's"
        yield from error((SGLANG, LLAMA_CPP), "model_type", problem, "train a head of Llama layers")


def _lm_head_rules(head: PublishedHead) -> Iterator[Finding]:
    named = head.config.get("draft_vocab_size") is not None
    if not named:
        lacks, remedy = "draft_vocab_size is missing,", "write the number of rows of lm_head.weight"
        yield from error(SGLANG, "draft_vocab_size", f"{lacks} which SGLang asks for", remedy)
        problem = f"{lacks} by which llama.cpp knows EAGLE-3"
        yield from error(LLAMA_CPP, "draft_vocab_size", problem, remedy)
    if "lm_head.weight" in head.weights:
        return
    reduced = head.eagle3.draft_vocab_size < head.eagle3.layers.vocab_size
    problem, remedy = "lm_head.weight is missing", "save it with the head"
    more = ", and the target's has more rows" if reduced else ""
    yield from (error if reduced else note)(VLLM, "lm_head", problem + more, remedy)
    yield from error(LLAMA_CPP, "lm_head", problem + more, remedy)
    if named:
        silently = f"{problem}, and SGLang keeps what memory held without a word"
        yield from wrong(SGLANG, "lm_head", silently, remedy)


def _id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    own, last = head.nested("eagle_config"), target.num_layers - 1
    top, inner = layer_ids(head.config, AUX, CONFIG, 0), layer_ids(own, AUX, CONFIG, 1)
    yield from _layer_id_rules(AUX, top, (0, last))
    yield from _layer_id_rules(f"eagle_config.{AUX}", own.get(AUX), (-1, last - 1))
    fused = len(top or inner or target.default_layers)
    if fused != 3:
        problem = f"the head fuses {fused} hidden layers, but llama.cpp fuses 3"
        yield from error(LLAMA_CPP, "layer_ids", problem, "train on 3")
    if inner is None and fused != 3:
        problem = f"SGLang fuses 3 hidden layers unless eagle_config.{AUX} names others"
        yield from error(SGLANG, "layer_ids", problem, "write i - 1 for each there")


def _layer_id_rules(where: str, named: Any, bounds: tuple[int, int]) -> Iterator[Finding]:
    """Check that layer ids ascend and lie within bounds; None names none.

    Engines collect hidden layers in the order in which they run them.
    """
    if named is None:
        return
    ids = list(named)
    if any(later <= earlier for earlier, later in pairwise(ids)):
        problem = f"{where} {ids} does not ascend, but engines collect layers in ascending order"
        yield from wrong(EVERY, "layer_ids", problem, "train on ascending layers")
    if not bounds[0] <= min(ids) <= max(ids) <= bounds[1]:
        problem = f"{where} {ids} leaves [{bounds[0]}, {bounds[1]}], the target's layers"
        yield from error(EVERY, "layer_ids", problem, "take a head of this target")


def _tensor_rules(head: PublishedHead, required: Shapes, allowed: Shapes) -> Iterator[Finding]:
    stored = {name: tuple(tensor.shape) for name, tensor in head.weights.items()}
    needed = {name: shape for name, shape in required.items() if name != "d2t"}
    for trap, flaw in flaws(stored, needed, allowed, ("d2t", "t2d")):
        problem, remedy = f"the head {flaw}", "save it again, or correct the config"
        if trap == "shape":
            yield from error(EVERY, trap, problem, remedy)
            continue
        yield from error((VLLM, LLAMA_CPP), trap, problem, remedy)
        if trap == "missing_tensor":
            silently = f"{problem}, and SGLang keeps what memory held without a word"
            yield from wrong(SGLANG, trap, silently, remedy)
        else:
            yield from note(SGLANG, trap, f"{problem}, and SGLang skips it without a word", remedy)


def value_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check the types of tensors."""
    if head.in_few_bits:
        problem = "its matrices are stored in 8 or 4 bits with scales, as forerun alone reads them"
        yield from error(tuple(TITLES), "few bits", problem, "write a copy with `forerun export`")
    for name, tensor in head.weights.items():
        allowed = _TYPES | (_SMALL if name in ("d2t", "t2d") else set())
        if tensor.dtype not in allowed:
            problem = f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}"
            remedy = "store weights as bfloat16 or float32, d2t as int64"
            yield from error(EVERY, "dtype", problem, remedy)


def _vocabulary_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check d2t and t2d: presence, type, length, offsets, range, uniqueness, and agreement."""
    d2t, (draft, vocab_size) = head.weights.get("d2t"), head.vocab_sizes
    if d2t is None:
        if draft < vocab_size:
            lacks = f"the draft vocabulary has {draft} of {vocab_size} tokens, but there is no d2t"
            remedy = "save d2t: int64 offsets, target id - draft id"
            problem = f"{lacks}, so {{engine}} takes draft ids for target ids"
            yield from wrong((VLLM, SGLANG), "d2t", problem, remedy)
            yield from error(LLAMA_CPP, "d2t", lacks, remedy)
        return
    if d2t.dtype.is_floating_point:
        problem = f"d2t is stored as {d2t.dtype}, which rounds ids"
        yield from wrong(EVERY, "d2t", problem, "store it as int64")
    if tuple(d2t.shape) != (draft,):
        problem = f"d2t has the shape {list(d2t.shape)}, but draft_vocab_size is {draft}"
        remedy = "write one offset for each token of the draft vocabulary"
        yield from error(EVERY, "d2t", problem, remedy)
    elif looks_absolute(head):
        problem = "d2t holds target ids, where every engine reads offsets, and llama.cpp refuses ids out of"
        remedy = "write int64 offsets d2t[i] = target id - i"
        yield from error(LLAMA_CPP, "d2t", f"{problem} range", remedy)
    else:
        yield from _mapping_rules(head, d2t, vocab_size)


def _mapping_rules(head: PublishedHead, d2t: torch.Tensor, vocab_size: int) -> Iterator[Finding]:
    target_ids = d2t.long() + torch.arange(len(d2t))
    if target_ids.min() < 0 or target_ids.max() >= vocab_size:
        problem = f"d2t leads to ids outside the target's {vocab_size} tokens"
        yield from error(EVERY, "d2t", problem, "write offsets: target id - draft id")
        return
    if len(set(target_ids.tolist())) < len(target_ids):
        problem = "d2t leads to the same target token twice"
        remedy = "give each draft token a target token of its own"
        yield from wrong((VLLM, SGLANG), "d2t", problem, remedy)
        yield from error(LLAMA_CPP, "d2t", problem, remedy)
    t2d = head.weights.get("t2d")
    if t2d is None:
        return
    if tuple(t2d.shape) != (vocab_size,):
        problem = f"t2d has the shape {list(t2d.shape)}, but the target has {vocab_size} tokens"
        yield from error(EVERY, "t2d", problem, "write one boolean for each token of the target")
    elif not torch.equal(t2d.bool().nonzero().flatten(), target_ids.sort().values):
        problem = "t2d and d2t disagree about which target tokens can be drafted"
        yield from wrong(EVERY, "t2d", problem, "write both from the same list of tokens")


def _target_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Check that the head was made for this target."""
    hidden = head.layers.get("hidden_size")
    reads = head.config.get("target_hidden_size") or hidden
    sizes = {
        "hidden_size": (reads, target.hidden_size),
        "vocab_size": (head.vocab_sizes[1], target.vocab_size),
    }
    for name, (ours, theirs) in sizes.items():
        if ours != theirs:
            problem = f"the head is for a target with {name} {ours}, but {target.name} has {theirs}"
            yield from error(EVERY, name, problem, "take a head of this target")
    if hidden != reads and "embed_tokens.weight" not in head.weights:
        problem = (
            "the head's hidden size is not the target's, so it cannot read the target's embedding"
        )
        yield from error(EVERY, "hidden_size", problem, "save embed_tokens.weight with the head")


def _rope_rules(head: PublishedHead) -> Iterator[Finding]:
    """Check that both dialects of the rotary embedding agree."""
    layers, rope = head.layers, rope_of(head)
    newer, older = layers.get("rope_parameters"), layers.get("rope_scaling")
    theta = layers.get("rope_theta")
    if isinstance(newer, Mapping) and (theta is not None or older is not None):
        both = {**(older if isinstance(older, Mapping) else {}), "rope_theta": theta}
        both["rope_type"] = both.pop("type", None) or both.get("rope_type")
        stated = {key: value for key, value in both.items() if value is not None}
        if not same_rope({**rope, **stated}, rope):
            problem = (
                "rope_parameters and the older rope_theta and rope_scaling contradict each other"
            )
            yield from wrong(EVERY, "rope", problem, "write the same in both")
