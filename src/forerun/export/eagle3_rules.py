"""Rules for EAGLE-3 heads, engine by engine (arXiv 2503.01840; EAGLE-3.1's flags too)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from forerun.errors import CheckpointError
from forerun.export import common_rules as common
from forerun.export.differences import reading_findings
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
from forerun.export.head import PublishedHead
from forerun.export.readings import AUX, eagle3_reading
from forerun.export.sizes import Shapes, Sizes, eagle3_shapes, ids, rope_of, sizes_of
from forerun.export.target import Target

ARCHITECTURES = {
    VLLM: frozenset(
        {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}
        | {"Eagle3Speculator", "Eagle3DraftModel"}
    ),
    SGLANG: frozenset({"LlamaForCausalLMEagle3"}),
    LLAMA_CPP: frozenset(
        {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"}
    ),
}
_SPECULATORS_NAMES = {"Eagle3Speculator", "Eagle3DraftModel"}


def eagle3_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with an EAGLE-3 head."""
    yield from format_rules(head, "Eagle3Speculator", ARCHITECTURES)
    try:
        sizes = sizes_of(head, target)
        rope_of(head)
        yield from _layer_id_rules(head, sizes, target)
    except CheckpointError as failure:
        yield error(EVERY, "config", str(failure).removesuffix("."), "correct config.json")
        return
    yield from common.target_rules(head, sizes, target)
    yield from common.tensor_rules(head, eagle3_shapes(sizes), _optional(head, sizes))
    yield from common.value_rules(head)
    yield from common.vocabulary_rules(head, sizes)
    yield from common.rope_rules(head, target)
    yield from common.context_rules(head, target)
    yield from _flag_rules(head, target)
    yield from _layer_rules(head, sizes)
    yield from _lm_head_rules(head, sizes)
    yield from reading_findings(head, target)


def format_rules(
    head: PublishedHead, speculator: str, architectures: dict[str, frozenset[str]]
) -> Iterator[Finding]:
    """Check that each engine reads the format of the config."""
    if not head.wrapped:
        names = {
            engine: known - {speculator, *_SPECULATORS_NAMES}
            for engine, known in architectures.items()
        }
        yield from common.architecture_rules(head, names)
        if not head.config.get("model_type"):
            for engine in (VLLM, SGLANG):
                problem = f"config.json has no model_type, by which {TITLES[engine]} finds the config's class"
                yield error(
                    engine, "model_type", problem, "write llama (EAGLE-3) or qwen3 (DSpark)"
                )
        return
    problem = "the config is in the format of speculators, which SGLang does not read"
    remedy = f"export it with `forerun export --to {head.kind}`"
    yield error(SGLANG, "speculators_format", problem, remedy)
    yield from common.architecture_rules(head, {LLAMA_CPP: architectures[LLAMA_CPP]})
    yield from _wrapper_rules(head)


def _wrapper_rules(head: PublishedHead) -> Iterator[Finding]:
    if not isinstance(head.config.get("transformer_layer_config"), dict):
        problem = "the config has no transformer_layer_config"
        yield error(EVERY, "speculators_format", problem, "write the config of the layers there")
    if "embed_tokens.weight" not in head.weights:
        problem = "there is no embed_tokens.weight, and speculators 0.9 may read uninitialized memory for it"
        yield note(EVERY, "embed_tokens", problem, "save the target's embedding with the head")
    outer = head.nested("speculators_config")
    verifier: Any = outer.get("verifier")
    if not isinstance(verifier, dict) or not isinstance(outer.get("proposal_methods"), list):
        problem = "speculators_config names no verifier or no proposal_methods"
        yield error(VLLM, "speculators_format", problem, "write both")
        return
    path = verifier.get("name_or_path")
    if not isinstance(path, str) or path.startswith(("/", ".", "~")):
        problem = "the verifier is no id of the hub, so `vllm serve` of this directory fails"
        remedy = "serve the target with --speculative-config, or write its id"
        yield note(VLLM, "verifier", problem, remedy)


def _optional(head: PublishedHead, sizes: Sizes) -> Shapes:
    """Shapes of the tensors that the head may have, given its flags."""
    hidden, wide = sizes.hidden_size, sizes.num_features * sizes.target_hidden_size
    shapes: Shapes = {
        "embed_tokens.weight": (sizes.vocab_size, hidden),
        "lm_head.weight": (sizes.draft_vocab_size, hidden),
    }
    if _on(head, "norm_before_fc"):
        shapes["input_norm.weight"] = (wide,)
    if _on(head, "fc_norm"):
        for index in range(sizes.num_features):
            shapes[f"fc_norm.{index}.weight"] = (sizes.target_hidden_size,)
    if head.layers.get("attention_bias"):
        for name, heads in (
            ("q", sizes.num_heads),
            ("k", sizes.num_kv_heads),
            ("v", sizes.num_kv_heads),
        ):
            for index in range(sizes.num_layers):
                shapes[f"layers.{index}.self_attn.{name}_proj.bias"] = (heads * sizes.head_dim,)
    return shapes


def _on(head: PublishedHead, flag: str) -> bool:
    value = head.config.get(flag)
    return bool(head.nested("eagle_config").get(flag) if value is None else value)


def _flag_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    reading = eagle3_reading(head, target)
    if reading.norm_before_fc and "input_norm.weight" not in head.weights:
        yield from common.missing("input_norm.weight (norm_before_fc)")
    if reading.fc_norm:
        for index in range(len(reading.hidden_layers)):
            if f"fc_norm.{index}.weight" not in head.weights:
                yield from common.missing(f"fc_norm.{index}.weight")
        problem = "llama.cpp has no norm for each fused feature (fc_norm, EAGLE-3.1)"
        yield error(
            LLAMA_CPP, "fc_norm", problem, "train without fc_norm, or do not serve the head there"
        )
    if reading.fc_norm and reading.norm_before_fc:
        problem = "norm_before_fc and fc_norm exclude each other"
        yield error(VLLM, "fc_norm", problem, "set one of them to false")
    if head.nested("eagle_config").get("use_aux_hidden_state") is False:
        problem = "eagle_config.use_aux_hidden_state is false, so vLLM builds no fc"
        yield error(VLLM, "use_aux_hidden_state", problem, "write true")
    if "norm_before_residual" not in head.config:
        problem = (
            "norm_before_residual is not named: in the format of speculators vLLM takes true for it, "
            "llama.cpp false"
        )
        found = wrong if head.wrapped else note
        yield found(EVERY, "norm_before_residual", problem, "write it into config.json")
    if "target_hidden_size" in head.config and head.config["target_hidden_size"] is None:
        problem = "target_hidden_size is null, which SGLang multiplies"
        if not head.wrapped:
            yield error(
                SGLANG, "target_hidden_size", problem, "leave it out, or write the target's"
            )


def _layer_rules(head: PublishedHead, sizes: Sizes) -> Iterator[Finding]:
    if sizes.num_layers > 1:
        problem = f"the head has {sizes.num_layers} layers, but llama.cpp runs one"
        yield error(LLAMA_CPP, "num_layers", problem, "train one layer")
    activation = head.layers.get("hidden_act", "silu")
    if activation != "silu":
        for engine in (VLLM, SGLANG):
            problem = f"hidden_act is {activation}, but {TITLES[engine]} has silu alone here"
            yield error(engine, "activation", problem, "train with silu")
    for bias in ("fc.bias", "layers.0.self_attn.q_proj.bias"):
        if bias in head.weights:
            problem = f"{bias} is there, but llama.cpp has no such bias"
            yield error(LLAMA_CPP, "bias", problem, "train without it")
    if head.layers.get("attention_bias") and "layers.0.self_attn.q_proj.bias" not in head.weights:
        problem = "attention_bias is true, but there are no biases, and vLLM adds what memory held"
        yield wrong(VLLM, "bias", problem, "write attention_bias=false")
    kind = head.layers.get("model_type")
    if kind not in (None, "llama"):
        for engine in (SGLANG, LLAMA_CPP):
            problem = f"the layers are of model_type {kind}, but {TITLES[engine]} builds Llama's"
            yield error(engine, "model_type", problem, "train a head of Llama layers")


def _lm_head_rules(head: PublishedHead, sizes: Sizes) -> Iterator[Finding]:
    if head.config.get("draft_vocab_size") is None:
        remedy = "write the number of rows of lm_head.weight"
        problem = "draft_vocab_size is missing, which SGLang asks for"
        yield error(SGLANG, "draft_vocab_size", problem, remedy)
        problem = "draft_vocab_size is missing, by which llama.cpp knows EAGLE-3"
        yield error(LLAMA_CPP, "draft_vocab_size", problem, remedy)
    if "lm_head.weight" not in head.weights:
        reduced = sizes.draft_vocab_size < sizes.vocab_size
        for engine in (VLLM, LLAMA_CPP):
            problem = "lm_head.weight is missing" + (
                ", and the target's has more rows" if reduced else ""
            )
            kind = error if reduced or engine == LLAMA_CPP else note
            yield kind(engine, "lm_head", problem, "save it with the head")
        if head.config.get("draft_vocab_size") is not None:
            problem = "lm_head.weight is missing, and SGLang keeps what memory held without a word"
            yield wrong(SGLANG, "lm_head", problem, "save it with the head")


def _layer_id_rules(head: PublishedHead, sizes: Sizes, target: Target) -> Iterator[Finding]:
    top, inner = ids(head.config, AUX), ids(head.nested("eagle_config"), AUX)
    for where, named, last in (
        (AUX, top, target.num_layers - 1),
        (f"eagle_config.{AUX}", inner, target.num_layers - 2),
    ):
        yield from ascending(where, named, (0 if where == AUX else -1, last))
    read = top or target.default_layers
    if len(read) != 3 or sizes.num_features != 3:
        problem = f"the head fuses {sizes.num_features} hidden layers, but llama.cpp fuses 3"
        yield error(LLAMA_CPP, "layer_ids", problem, "train on 3")
    if inner is None and sizes.num_features != 3:
        problem = f"SGLang fuses 3 hidden layers unless eagle_config.{AUX} names others"
        yield error(SGLANG, "layer_ids", problem, "write i - 1 for each there")


def ascending(
    where: str, named: tuple[int, ...] | None, bounds: tuple[int, int]
) -> Iterator[Finding]:
    """Check that layer ids ascend and lie within bounds.

    Engines collect hidden layers in the order in which they run them.
    """
    if named is None:
        return
    if any(later <= earlier for earlier, later in pairwise(named)):
        problem = (
            f"{where} {list(named)} does not ascend, but engines collect layers in ascending order"
        )
        yield wrong(EVERY, "layer_ids", problem, "train on ascending layers")
    if named and not bounds[0] <= min(named) <= max(named) <= bounds[1]:
        problem = f"{where} {list(named)} leaves [{bounds[0]}, {bounds[1]}], the target's layers"
        yield error(EVERY, "layer_ids", problem, "take a head of this target")
