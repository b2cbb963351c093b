"""Requests of `forerun check` and `forerun export`: an EAGLE-3 head for other engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from forerun.engine.options import ModelOptions
from forerun.files import size_text
from forerun.options import FileName, Text, option, options, part
from forerun.report.result import DEFECT_FOUND, Result

_Engine = Literal["vllm", "sglang", "llama.cpp"]
_TARGET = "The target; by default the one that the head names in forerun.json."
_ELSEWHERE = ("model", "max_context", "threads", "kv_dtype")


@options
class CheckRequest:
    """Check an EAGLE-3 head for other engines.

    HEAD is a directory or a hub id. Its config and tensors are checked for everything that engines are
    known to refuse or to misread silently. Then the head drafts on 64 tokens of the target as each engine
    reads it, and as it was trained. Exit code 1 if an engine does not load it or drafts otherwise.
    """

    head: Text = option(
        description="The head, a directory or a hub id.", section="Model", argument=True
    )
    model: Text | None = Field(default=None, description=_TARGET)
    place: ModelOptions = part(default=ModelOptions, section="Model", without=_ELSEWHERE)
    engines: tuple[_Engine, ...] = option(
        default=("vllm", "sglang", "llama.cpp"),
        description="The engines to check for.",
        section="Engines",
    )
    replay: bool = Field(default=True, description="Run the target and the head on 64 tokens.")


@options
class ExportRequest:
    """Export an EAGLE-3 head to other engines.

    HEAD is a directory or a hub id, in any published layout. It is written in the layout that vLLM, SGLang
    and llama.cpp all load. A head that an engine would not load, or would misread, is refused with the
    reason. Existing files are never overwritten.
    """

    head: Text = option(
        description="The head, a directory or a hub id.", section="Head", argument=True
    )
    output: FileName = option(description="The directory to write; it must not exist, or be empty.")
    model: Text | None = option(default=None, description=_TARGET, section="Model")
    place: ModelOptions = part(default=ModelOptions, section="Model", without=_ELSEWHERE)
    engines: tuple[_Engine, ...] = option(
        default=(),
        description="The engines that must load it; by default all.",
        section="Engines",
    )


def check(request: CheckRequest) -> Result:
    """Findings of each engine in a head, and the share of drafts that stay the same there.

    Raises:
        ForerunError: for a head, a target or an engine that is not known.
    """
    from forerun.export.check import HeadAndTarget
    from forerun.export.head import EAGLE3, VERSIONS

    pair = HeadAndTarget.open(request.head, request.model, request.place.revision)
    placement = request.place.placement
    examined = pair.examine(request.engines, pair.load(placement) if request.replay else None)
    content = {
        "head": pair.head.name,
        "kind": EAGLE3,
        "model": pair.target.name,
        "engines": {engine: VERSIONS[engine] for engine in request.engines},
        "clean": examined.clean,
        "findings": [dict(vars(finding)) for finding in examined.findings],
        "replays": [dict(vars(replay)) for replay in examined.replays],
        "replay_skipped": examined.skipped or None,
    }
    return Result(
        content=content,
        answers=list(_in_words(content)),
        notes=[f"not run: {examined.skipped}"] if examined.skipped else [],
        exit_code=0 if examined.clean else DEFECT_FOUND,
        device=pair.checkpoint.run_config(placement).device,
    )


def _in_words(content: dict[str, Any]) -> Iterator[str]:
    yield f"{content['kind']} head for {content['model']}"
    for replay in content["replays"]:
        figures = ""
        if replay["agreement"] is not None:
            figures = (
                f" ({replay['agreement']:.0%} the same drafts; {replay['hits']:.0%} are the target's own "
                f"tokens, {replay['trained_hits']:.0%} as trained)"
            )
        version = content["engines"][replay["engine"]]
        yield f"{replay['engine']} {version}: {replay['verdict']}{figures}"
    for finding in content["findings"]:
        text = f"{finding['problem']}; {finding['remedy']}"
        yield f"{finding['severity']:<5}  {finding['engine']:<9}  {text}"
    if not content["findings"] and not content["replays"]:
        yield "nothing found"


def export(request: ExportRequest) -> Result:
    """A head in the layout that every engine loads, written to a directory.

    Raises:
        ForerunError: for a head that cannot be exported faithfully, or a directory that is in use.
    """
    from forerun.errors import CheckpointError
    from forerun.export.check import HeadAndTarget
    from forerun.export.export import export_head, write_export
    from forerun.files import read_text
    from forerun.heads.files import CARD

    pair = HeadAndTarget.open(request.head, request.model, request.place.revision)
    model = pair.load(request.place.placement)
    result = export_head(pair.head.without_copy(model), pair.target, model, request.engines)
    card = Path(request.head) / CARD
    about = read_text(card, "card", CheckpointError) if card.is_file() else ""
    write_export(result, Path(request.output), about)
    size = sum(tensor.nbytes for tensor in result.tensors.values())
    content = {
        "head": request.head,
        "model": pair.target.name,
        "output": request.output,
        "weight_bytes": size,
    }
    answer = f"{request.output}: {size_text(size)} of weights"
    return Result(content=content, answers=[answer], device=model.device)
