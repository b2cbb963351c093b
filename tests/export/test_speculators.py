"""The library speculators loads exported heads, and its forward gives our logits.

It needs other versions of transformers than forerun, so it runs in a Python of its own, which
SPECULATORS_PYTHON names: `SPECULATORS_PYTHON=env/bin/python pytest tests/export/test_speculators.py`.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.contracts import CausalLM
from forerun.export.export import export_head, write_export
from forerun.export.head import PublishedHead
from forerun.export.layouts import VerifierModel
from forerun.export.readings import reading_of
from forerun.export.replay import ObservedText, draft
from tests.helpers.published_heads import AUX, HIDDEN, TARGET, eagle3_head, with_tensors

PYTHON = os.environ.get("SPECULATORS_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="SPECULATORS_PYTHON names no Python")

SCRIPT = textwrap.dedent(
    """
    import sys, torch
    from safetensors.torch import load_file
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    directory, inputs, output = sys.argv[1:]
    config = Eagle3SpeculatorConfig.from_pretrained(directory)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(directory, config=config)
    stored = load_file(directory + "/model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in stored.items())
    given, logits = torch.load(inputs), []
    model.lm_head.register_forward_hook(lambda *call: logits.append(call[2][0].float()))
    with torch.no_grad():
        model.float().eval()(
            hidden_states=given["hidden"][None],
            input_ids=given["tokens"][None],
            document_ids=torch.zeros_like(given["tokens"])[None],
            ttt_steps=3,
        )
    torch.save({"logits": logits, "d2t": model.d2t}, output)
    """
)


def normed() -> PublishedHead:
    weights = {
        f"fc_norm__{index}__weight": torch.full((HIDDEN,), 0.5 + index) for index in range(3)
    }
    return with_tensors(
        eagle3_head(fc_norm=True, norm_output=True, norm_before_residual=True), **weights
    )


HEADS: dict[str, Callable[[], PublishedHead]] = {
    "portable": eagle3_head,
    "eagle-3.1": normed,
    "other-layers": lambda: eagle3_head(**{AUX: [1, 2, 7]}),
}


def in_the_library(directory: Path, hidden: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    inputs, output = directory / "inputs.pt", directory / "output.pt"
    torch.save({"hidden": hidden, "tokens": tokens}, inputs)
    program = [PYTHON, "-c", SCRIPT, str(directory), str(inputs), str(output)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded: dict[str, Tensor] = torch.load(output)
    return loaded


@pytest.mark.parametrize("name", HEADS)
def test_its_forward_gives_our_logits(
    name: str, tiny: Path, model: CausalLM, text: ObservedText, tmp_path: Path
) -> None:
    head, directory = HEADS[name](), tmp_path / "head"
    verifier = VerifierModel(str(tiny), ("LlamaForCausalLM",), model)
    exported = export_head(head, TARGET, "speculators", verifier, ("vllm",))
    write_export(exported, directory, "speculators", "")
    reading = reading_of(head, TARGET)
    ours = draft(head, TARGET, reading, text)
    hidden = torch.cat([text.hidden[layer] for layer in reading.hidden_layers], -1)
    theirs = in_the_library(directory, hidden[:-1], torch.tensor(text.token_ids[1:]))
    rows = torch.cat([step[: len(text) - 1 - i] for i, step in enumerate(theirs["logits"])])
    assert torch.allclose(rows, ours.logits, atol=1e-4)
    assert torch.equal(theirs["d2t"], exported.tensors["d2t"])
