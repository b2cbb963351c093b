"""Rules for EAGLE-3 heads, engine by engine (arXiv 2503.01840; EAGLE-3.1's flags too)."""

from __future__ import annotations

from collections.abc import Iterator

from forerun.export.findings import (
    EVERY,
    LLAMA_CPP,
    SGLANG,
    VLLM,
    Finding,
    error,
    note,
    wrong,
)
from forerun.export.head import AUX, CONFIG, PublishedHead, Target
from forerun.export.readings import reading_findings
from forerun.export.rules import common_rules, format_rules, layer_id_rules
from forerun.heads.config import layer_ids

_SPECULATORS = {"Eagle3Speculator", "Eagle3DraftModel"}
ARCHITECTURES = {
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
    yield from format_rules(head, ARCHITECTURES)
    yield from _flag_rules(head)
    yield from _layer_id_rules(head, target)
    required, optional = head.eagle3.shapes(), head.eagle3.optional()
    biases = {name for name in required if name.endswith("_proj.bias")}
    allowed = {name: optional[name] for name in ("embed_tokens.weight", "lm_head.weight")}
    allowed |= {name: required.pop(name) for name in biases}
    yield from common_rules(head, target, required, allowed)
    yield from _layer_rules(head)
    yield from _lm_head_rules(head)
    yield from reading_findings(head, target)


def _flag_rules(head: PublishedHead) -> Iterator[Finding]:
    inner = head.nested("eagle_config")
    if head.config.get("fc_norm") or inner.get("fc_norm"):
        problem = "llama.cpp has no norm for each fused feature (fc_norm, EAGLE-3.1)"
        remedy = "train without fc_norm, or do not serve the head there"
        yield from error(LLAMA_CPP, "fc_norm", problem, remedy)
        if head.config.get("norm_before_fc") or inner.get("norm_before_fc"):
            problem = "norm_before_fc and fc_norm exclude each other"
            yield from error(VLLM, "fc_norm", problem, "set one of them to false")
    if inner.get("use_aux_hidden_state") is False:
        problem = "eagle_config.use_aux_hidden_state is false, so vLLM builds no fc"
        yield from error(VLLM, "use_aux_hidden_state", problem, "write true")
    if "norm_before_residual" not in head.config:
        problem = (
            "norm_before_residual is not named: in the format of speculators vLLM takes true for it, "
            "llama.cpp false"
        )
        found = wrong if head.wrapped else note
        yield from found(EVERY, "norm_before_residual", problem, "write it into config.json")
    if head.config.get("target_hidden_size", 0) is None and not head.wrapped:
        problem = "target_hidden_size is null, which SGLang multiplies"
        remedy = "leave it out, or write the target's"
        yield from error(SGLANG, "target_hidden_size", problem, remedy)


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
        kept = f"{problem}, and SGLang keeps what memory held without a word"
        yield from wrong(SGLANG, "lm_head", kept, remedy)


def _layer_id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
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
