"""Rules for DSpark heads, engine by engine (DeepSpec's layout, and that of speculators)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forerun.errors import CheckpointError
from forerun.export import common_rules as common
from forerun.export.differences import reading_findings
from forerun.export.eagle3_rules import ascending, format_rules
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
from forerun.export.sizes import (
    MOST_BLOCK,
    Shapes,
    Sizes,
    dspark_shapes,
    ids,
    named_layers,
    rope_of,
    sizes_of,
    whole,
)
from forerun.export.target import Target

ARCHITECTURES = {
    VLLM: frozenset({"Qwen3DSparkModel"}),
    SGLANG: frozenset({"Qwen3DSparkModel", "DSparkDraftModel"}),
    LLAMA_CPP: frozenset({"Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator"}),
}
_CONFIDENCE = "confidence_head.proj.weight"


def dspark_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    """Find everything that is wrong with a DSpark head."""
    yield from format_rules(head, "DSparkSpeculator", ARCHITECTURES)
    try:
        sizes, rank = sizes_of(head, target), _rank(head)
        rope_of(head)
        yield from _layer_id_rules(head, target)
        if named_layers(head) is None:
            return
        whole(head.config, "block_size", most=MOST_BLOCK)
    except CheckpointError as failure:
        yield error(EVERY, "config", str(failure).removesuffix("."), "correct config.json")
        return
    required, confidence = dspark_shapes(sizes, rank, _joined(head, rank))
    allowed = {**confidence, **_optional(sizes)}
    yield from common.target_rules(head, sizes, target)
    yield from common.tensor_rules(head, required, allowed)
    yield from common.value_rules(head)
    yield from _markov_rules(head, rank)
    yield from _confidence_rules(head, rank)
    yield from _vocabulary_rules(head, sizes)
    yield from _mask_rules(head, target)
    yield from _layer_rules(head)
    yield from common.rope_rules(head, target)
    yield from common.context_rules(head, target)
    yield from reading_findings(head, target)


def _rank(head: PublishedHead) -> int:
    value = head.config.get("markov_rank", 0)
    return 0 if value in (0, None) else whole(head.config, "markov_rank")


def _joined(head: PublishedHead, rank: int) -> bool:
    """True if the stored confidence head reads the Markov embedding, judged by its width."""
    stored = head.weights.get(_CONFIDENCE)
    if stored is None or stored.ndim != 2:
        return rank > 0
    return int(stored.shape[1]) != head.layers.get("hidden_size")


def _optional(sizes: Sizes) -> Shapes:
    return {
        "embed_tokens.weight": (sizes.vocab_size, sizes.hidden_size),
        "lm_head.weight": (sizes.draft_vocab_size, sizes.hidden_size),
    }


def _markov_rules(head: PublishedHead, rank: int) -> Iterator[Finding]:
    kind = head.config.get("markov_head_type")
    if not rank:
        problem = "markov_rank is 0 or missing, but DSpark needs a Markov head"
        yield error(
            EVERY, "markov_rank", problem, "train with a Markov head, or serve it as DFlash"
        )
    elif kind is None:
        problem = "markov_head_type is missing, which SGLang asks for"
        yield error(SGLANG, "markov_head_type", problem, "write vanilla, gated or rnn")
    elif kind != "vanilla":
        for engine in (VLLM, LLAMA_CPP):
            problem = f"the Markov head is {kind}, but {TITLES[engine]} has vanilla alone"
            yield error(engine, "markov_head_type", problem, "train a vanilla one")


def _confidence_rules(head: PublishedHead, rank: int) -> Iterator[Finding]:
    stored = head.weights.get(_CONFIDENCE)
    enabled = head.config.get("enable_confidence_head")
    if enabled is None:
        problem = "enable_confidence_head is not named: vLLM takes false for it, SGLang true"
        yield note(EVERY, "enable_confidence_head", problem, "write it into config.json")
    if stored is None:
        if enabled is not False:
            problem = "SGLang takes the confidence head for enabled, but its weights are missing"
            remedy = "write enable_confidence_head=false, or save the weights"
            yield error(SGLANG, "enable_confidence_head", problem, remedy)
        return
    if enabled is False:
        problem = "enable_confidence_head is false, but its weights are there: they go unused"
        yield note(EVERY, "enable_confidence_head", problem, "leave them out, or write true")
        return
    if "confidence_head.proj.bias" not in head.weights:
        problem = "confidence_head.proj.bias is missing"
        for engine in (VLLM, SGLANG):
            yield error(engine, "confidence_head", problem, "save it with the head")
    joined, said = _joined(head, rank), head.config.get("confidence_head_with_markov")
    for engine, default in ((VLLM, False), (SGLANG, rank > 0)):
        read = default if said is None else bool(said)
        if read != joined and (engine == SGLANG or enabled):
            problem = (
                f"{TITLES[engine]} takes confidence_head_with_markov for {str(read).lower()}, but the "
                f"weights are {'wider' if joined else 'narrower'}"
            )
            remedy = f"write confidence_head_with_markov={str(joined).lower()}"
            yield error(engine, "confidence_head_with_markov", problem, remedy)


def _vocabulary_rules(head: PublishedHead, sizes: Sizes) -> Iterator[Finding]:
    yield from common.vocabulary_rules(head, sizes)
    reduced = sizes.draft_vocab_size < sizes.vocab_size
    if reduced:
        problem = "SGLang has no reduced draft vocabulary for DSpark"
        remedy = "export it with `forerun export --to dspark`"
        yield error(SGLANG, "draft_vocab_size", problem, remedy)
        if "lm_head.weight" not in head.weights:
            problem = "the draft vocabulary is reduced, but lm_head.weight is missing"
            for engine in (VLLM, LLAMA_CPP):
                yield error(engine, "lm_head", problem, "save its rows of the target's head")
    if head.config.get("tie_word_embeddings"):
        problem = "tie_word_embeddings is true"
        yield note(EVERY, "tie_word_embeddings", problem, "write false; the target's head is taken")


def _mask_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    mask: Any = head.config.get("mask_token_id")
    inner = head.nested("dflash_config").get("mask_token_id")
    if mask is None and inner is None:
        problem = "mask_token_id is missing"
        yield error(EVERY, "mask_token_id", problem, "write the id that the head was trained with")
        return
    if mask is not None and inner is not None and mask != inner:
        problem = f"mask_token_id is {mask}, but dflash_config.mask_token_id is {inner}"
        yield wrong(EVERY, "mask_token_id", problem, "write the same in both")
    mask = inner if mask is None else mask
    if type(mask) is not int or not 0 <= mask < target.vocab_size:
        problem = f"mask_token_id {mask!r} is no token of the target, which has {target.vocab_size}"
        yield error(
            EVERY, "mask_token_id", problem, "write an unused id below the target's vocabulary"
        )
    elif mask in target.end_tokens:
        problem = f"mask_token_id {mask} ends texts of the target"
        yield note(EVERY, "mask_token_id", problem, "train with an id that texts do not hold")


def _layer_rules(head: PublishedHead) -> Iterator[Finding]:
    kinds = head.layers.get("layer_types")
    if isinstance(kinds, list) and len(set(map(str, kinds))) > 1:
        problem = (
            "layer_types differ, which vLLM runs on its newer runner alone, llama.cpp not at all"
        )
        yield error(LLAMA_CPP, "layer_types", problem, "train with full attention")
        yield note(VLLM, "layer_types", problem, "train with full attention")
    if head.layers.get("attention_bias"):
        problem = "attention_bias is true, but llama.cpp has no such bias"
        yield error(LLAMA_CPP, "bias", problem, "train without it")
    if head.config.get("sample_from_anchor") is None:
        problem = (
            "sample_from_anchor is not named: speculators takes true for it, vLLM and llama.cpp false "
            "where the format is that of speculators"
        )
        found = wrong if head.wrapped else note
        yield found(EVERY, "sample_from_anchor", problem, "write it into config.json")


def _layer_id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
    key = "aux_hidden_state_layer_ids" if head.wrapped else "target_layer_ids"
    if named_layers(head) is None:
        problem = f"{key} is missing"
        yield error(EVERY, "layer_ids", problem, "write the layers that the head was trained on")
        return
    bounds = (0, target.num_layers) if head.wrapped else (-1, target.num_layers - 1)
    top, inner = ids(head.config, key), ids(head.nested("dflash_config"), key)
    yield from ascending(key, top or inner, bounds)
    if top is not None and inner is not None and top != inner:
        problem = f"{key} {list(top)} and that of dflash_config {list(inner)} differ"
        yield wrong(EVERY, "layer_ids", problem, "write the same in both")
    number: Any = head.config.get("num_target_layers")
    if number is not None and number != target.num_layers:
        problem = f"num_target_layers is {number}, but {target.name} has {target.num_layers} layers"
        yield error(EVERY, "num_target_layers", problem, "take a head of this target")
