"""Rules for heads of each kind, engine by engine: EAGLE-3 and DSpark.

EAGLE-3 is that of arXiv 2503.01840, with EAGLE-3.1's flags; DSpark comes in DeepSpec's layout or that of
speculators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forerun.export.findings import (
    EVERY,
    LLAMA_CPP,
    SGLANG,
    TITLES,
    VLLM,
    Finding,
    error,
    note,
    wrong,
)
from forerun.export.head import AUX, CONFIG, DSPARK, EAGLE3, PublishedHead, Target
from forerun.export.readings import reading_findings
from forerun.export.rules import common_rules, format_rules, layer_id_rules
from forerun.heads.config import layer_ids

_SPECULATORS = {"Eagle3Speculator", "Eagle3DraftModel"}
_EAGLE3_NAMES = {
    VLLM: frozenset(
        {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}
        | _SPECULATORS
    ),
    SGLANG: frozenset({"LlamaForCausalLMEagle3"}),
    LLAMA_CPP: frozenset({"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"} | _SPECULATORS),
}


def eagle3_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with an EAGLE-3 head.

    Raises:
        CheckpointError, UnsupportedModelError: for a config that forerun does not read.
    """
    yield from format_rules(head, _EAGLE3_NAMES)
    yield from _flag_rules(head)
    yield from _eagle3_id_rules(head, target)
    required, optional = head.eagle3.shapes(), head.eagle3.optional()
    biases = {name for name in required if name.endswith("_proj.bias")}
    allowed = {name: optional[name] for name in ("embed_tokens.weight", "lm_head.weight")}
    allowed |= {name: required.pop(name) for name in biases}
    yield from common_rules(head, target, required, allowed)
    yield from _eagle3_layer_rules(head)
    yield from _lm_head_rules(head)
    yield from reading_findings(head, target)


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


def _eagle3_layer_rules(head: PublishedHead) -> Iterator[Finding]:
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


def _eagle3_id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    own, last = head.nested("eagle_config"), target.num_layers - 1
    top, inner = layer_ids(head.config, AUX, CONFIG, 0), layer_ids(own, AUX, CONFIG, 1)
    yield from layer_id_rules(AUX, top, (0, last))
    yield from layer_id_rules(f"eagle_config.{AUX}", own.get(AUX), (-1, last - 1))
    fused = len(top or inner or target.default_layers)
    if fused != 3:
        problem = f"the head fuses {fused} hidden layers, but llama.cpp fuses 3"
        yield from error(LLAMA_CPP, "layer_ids", problem, "train on 3")
    if inner is None and fused != 3:
        problem = f"SGLang fuses 3 hidden layers unless eagle_config.{AUX} names others"
        yield from error(SGLANG, "layer_ids", problem, "write i - 1 for each there")


_DSPARK_NAMES = {
    VLLM: frozenset({"Qwen3DSparkModel"}),
    SGLANG: frozenset({"Qwen3DSparkModel", "DSparkDraftModel"}),
    LLAMA_CPP: frozenset({"Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator"}),
}
_CONFIDENCE = "confidence_head.proj.weight"


def dspark_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with a DSpark head.

    Raises:
        CheckpointError, UnsupportedModelError: for a config that forerun does not read.
    """
    yield from format_rules(head, _DSPARK_NAMES)
    yield from _markov_rules(head)
    masks, ids = list(_mask_rules(head, target)), list(_dspark_id_rules(head, target))
    yield from (*masks, *ids)
    if any(finding.problem.endswith("is missing") for finding in (*masks, *ids)):
        return
    required, optional = head.dspark.shapes(target.hidden_size), head.dspark.optional()
    allowed = {name: shape for name, shape in optional.items() if name != "t2d"}
    allowed |= {
        name: required.pop(name) for name in list(required) if name.startswith("confidence_head.")
    }
    yield from common_rules(head, target, required, allowed)
    yield from _confidence_rules(head)
    yield from _dspark_vocabulary_rules(head)
    yield from _dspark_layer_rules(head)
    yield from reading_findings(head, target)


def _markov_rules(head: PublishedHead) -> Iterator[Finding]:
    kind = head.config.get("markov_head_type")
    if not head.config.get("markov_rank"):
        problem = "markov_rank is 0 or missing, but DSpark needs a Markov head"
        remedy = "train with a Markov head, or serve it as DFlash"
        yield from error(EVERY, "markov_rank", problem, remedy)
    elif kind is None:
        problem = "markov_head_type is missing, which SGLang asks for"
        yield from error(SGLANG, "markov_head_type", problem, "write vanilla, gated or rnn")
    elif kind != "vanilla":
        problem = f"the Markov head is {kind}, but {{engine}} has vanilla alone"
        yield from error((VLLM, LLAMA_CPP), "markov_head_type", problem, "train a vanilla one")


def _confidence_rules(head: PublishedHead) -> Iterator[Finding]:
    stored, trap = head.weights.get(_CONFIDENCE), "enable_confidence_head"
    enabled, rank = head.config.get(trap), head.dspark.markov_rank
    if stored is None:
        if enabled is not False:
            problem = "SGLang takes the confidence head for enabled, but its weights are missing"
            yield from error(SGLANG, trap, problem, f"write {trap}=false, or save the weights")
        return
    if enabled is False:
        return
    if "confidence_head.proj.bias" not in head.weights:
        problem = "confidence_head.proj.bias is missing"
        yield from error((VLLM, SGLANG), "confidence_head", problem, "save it with the head")
    joined = head.dspark.confidence == "markov"
    trap, wide = "confidence_head_with_markov", "wider" if joined else "narrower"
    said = head.config.get(trap)
    for engine, default in ((VLLM, False), (SGLANG, rank > 0)):
        read = default if said is None else bool(said)
        if read != joined and (engine == SGLANG or enabled):
            taken = f"{TITLES[engine]} takes {trap} for {str(read).lower()}"
            remedy = f"write {trap}={str(joined).lower()}"
            yield from error(engine, trap, f"{taken}, but the weights are {wide}", remedy)


def _dspark_vocabulary_rules(head: PublishedHead) -> Iterator[Finding]:
    if head.dspark.draft_vocab_size < head.dspark.layers.vocab_size:
        problem = "SGLang has no reduced draft vocabulary for DSpark"
        remedy = "write a copy with `forerun export`"
        yield from error(SGLANG, "draft_vocab_size", problem, remedy)
        if "lm_head.weight" not in head.weights:
            problem = "the draft vocabulary is reduced, but lm_head.weight is missing"
            remedy = "save its rows of the target's head"
            yield from error((VLLM, LLAMA_CPP), "lm_head", problem, remedy)


def _mask_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    mask: Any = head.config.get("mask_token_id")
    inner = head.nested("dflash_config").get("mask_token_id")
    if mask is None and inner is None:
        remedy = "write the id that the head was trained with"
        yield from error(EVERY, "mask_token_id", "mask_token_id is missing", remedy)
        return
    if mask is not None and inner is not None and mask != inner:
        problem = f"mask_token_id is {mask}, but dflash_config.mask_token_id is {inner}"
        yield from wrong(EVERY, "mask_token_id", problem, "write the same in both")
    mask = inner if mask is None else mask
    if type(mask) is not int or not 0 <= mask < target.vocab_size:
        problem = f"mask_token_id {mask!r} is no token of the target, which has {target.vocab_size}"
        remedy = "write an unused id below the target's vocabulary"
        yield from error(EVERY, "mask_token_id", problem, remedy)


def _dspark_layer_rules(head: PublishedHead) -> Iterator[Finding]:
    kinds = head.layers.get("layer_types")
    if isinstance(kinds, list) and len(set(map(str, kinds))) > 1:
        problem = "layer_types differ, which llama.cpp does not run"
        yield from error(LLAMA_CPP, "layer_types", problem, "train with full attention")
    if head.layers.get("attention_bias"):
        problem = "attention_bias is true, but llama.cpp has no such bias"
        yield from error(LLAMA_CPP, "bias", problem, "train without it")
    if head.config.get("sample_from_anchor") is None:
        problem = (
            "sample_from_anchor is not named: speculators takes true for it, vLLM and llama.cpp false "
            "where the format is that of speculators"
        )
        report = wrong if head.wrapped else note
        yield from report(EVERY, "sample_from_anchor", problem, "write it into config.json")


def _dspark_id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    key, last = "target_layer_ids", target.num_layers - 1
    bounds, added = (-1, last), 1
    if head.wrapped:
        key, bounds, added = "aux_hidden_state_layer_ids", (0, last + 1), 0
    nested = head.nested("dflash_config")
    for part in (head.config, nested):
        layer_ids(part, key, CONFIG, added)
    top, inner = head.config.get(key), nested.get(key)
    if top is None and inner is None:
        remedy = "write the layers that the head was trained on"
        yield from error(EVERY, "layer_ids", f"{key} is missing", remedy)
        return
    yield from layer_id_rules(key, inner if top is None else top, bounds)
    if top is not None and inner is not None and top != inner:
        problem = f"{key} {list(top)} and that of dflash_config {list(inner)} differ"
        yield from wrong(EVERY, "layer_ids", problem, "write the same in both")
    number: Any = head.config.get("num_target_layers")
    if number is not None and number != target.num_layers:
        problem = f"num_target_layers is {number}, but {target.name} has {target.num_layers} layers"
        yield from error(EVERY, "num_target_layers", problem, "take a head of this target")


RULES: Mapping[str, Callable[[PublishedHead, Target], Iterator[Finding]]] = {
    EAGLE3: eagle3_rules,
    DSPARK: dspark_rules,
}
"""Rules of each kind of head."""
