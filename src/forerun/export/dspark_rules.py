"""Rules for DSpark heads, engine by engine (DeepSpec's layout, and that of speculators)."""

from __future__ import annotations

from collections.abc import Iterator
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
from forerun.export.head import CONFIG, PublishedHead, Target
from forerun.export.readings import reading_findings
from forerun.export.rules import common_rules, format_rules, layer_id_rules
from forerun.heads.config import layer_ids

ARCHITECTURES = {
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
    yield from format_rules(head, ARCHITECTURES)
    yield from _markov_rules(head)
    masks, ids = list(_mask_rules(head, target)), list(_layer_id_rules(head, target))
    yield from (*masks, *ids)
    if any(found.problem.endswith("is missing") for found in (*masks, *ids)):
        return
    required, optional = head.dspark.shapes(target.hidden_size), head.dspark.optional()
    allowed = {name: shape for name, shape in optional.items() if name != "t2d"}
    allowed |= {
        name: required.pop(name) for name in list(required) if name.startswith("confidence_head.")
    }
    yield from common_rules(head, target, required, allowed)
    yield from _confidence_rules(head)
    yield from _vocabulary_rules(head)
    yield from _layer_rules(head)
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
    if enabled is None:
        problem = f"{trap} is not named: vLLM takes false for it, SGLang true"
        yield from note(EVERY, trap, problem, "write it into config.json")
    if stored is None:
        if enabled is not False:
            problem = "SGLang takes the confidence head for enabled, but its weights are missing"
            yield from error(SGLANG, trap, problem, f"write {trap}=false, or save the weights")
        return
    if enabled is False:
        problem = f"{trap} is false, but its weights are there: they go unused"
        yield from note(EVERY, trap, problem, "leave them out, or write true")
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


def _vocabulary_rules(head: PublishedHead) -> Iterator[Finding]:
    if head.dspark.draft_vocab_size < head.dspark.layers.vocab_size:
        problem = "SGLang has no reduced draft vocabulary for DSpark"
        remedy = "export it with `forerun export --to dspark`"
        yield from error(SGLANG, "draft_vocab_size", problem, remedy)
        if "lm_head.weight" not in head.weights:
            problem = "the draft vocabulary is reduced, but lm_head.weight is missing"
            remedy = "save its rows of the target's head"
            yield from error((VLLM, LLAMA_CPP), "lm_head", problem, remedy)
    if head.config.get("tie_word_embeddings"):
        remedy = "write false; the target's head is taken"
        yield from note(EVERY, "tie_word_embeddings", "tie_word_embeddings is true", remedy)


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
    elif mask in target.end_tokens:
        problem = f"mask_token_id {mask} ends texts of the target"
        yield from note(EVERY, "mask_token_id", problem, "train with an id that texts do not hold")


def _layer_rules(head: PublishedHead) -> Iterator[Finding]:
    kinds = head.layers.get("layer_types")
    if isinstance(kinds, list) and len(set(map(str, kinds))) > 1:
        problem = (
            "layer_types differ, which vLLM runs on its newer runner alone, llama.cpp not at all"
        )
        yield from error(LLAMA_CPP, "layer_types", problem, "train with full attention")
        yield from note(VLLM, "layer_types", problem, "train with full attention")
    if head.layers.get("attention_bias"):
        problem = "attention_bias is true, but llama.cpp has no such bias"
        yield from error(LLAMA_CPP, "bias", problem, "train without it")
    if head.config.get("sample_from_anchor") is None:
        problem = (
            "sample_from_anchor is not named: speculators takes true for it, vLLM and llama.cpp false "
            "where the format is that of speculators"
        )
        found = wrong if head.wrapped else note
        yield from found(EVERY, "sample_from_anchor", problem, "write it into config.json")


def _layer_id_rules(head: PublishedHead, target: Target) -> Iterator[Finding]:
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
