"""Final norm and output head of a model of transformers, if nothing else makes its logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.errors import ConfigError

Part = Callable[[Tensor], Tensor]

_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


@torch.no_grad()
def find_head(model: Any, name: str) -> tuple[Part, Part]:
    """The final norm and the output head, if they alone turn the last layer's output into the exact logits.

    Some models scale or cap their logits, or put something between the two; this is detected here.

    Raises:
        ConfigError: naming the model.
    """
    output = model.get_output_embeddings()
    inner = model.base_model
    bodies = [inner, getattr(inner, "decoder", None)]
    norms = [
        getattr(body, norm)
        for body in bodies
        for norm in _NORMS
        if getattr(body, norm, None) is not None
    ]
    if output is not None and norms:
        seen: list[Tensor] = []
        hook = norms[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            token = torch.tensor([[0, 1 % model.config.get_text_config().vocab_size]])
            logits = model(input_ids=token.to(model.device), use_cache=False).logits
        finally:
            hook.remove()
        if len(seen) == 1 and torch.equal(output(norms[0](seen[0])), logits):
            return norms[0], output
    raise ConfigError(
        f"{name} runs on transformers and has no output head that can be run alone; "
        "use a method that drafts with a model of its own."
    )
