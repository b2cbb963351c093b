"""Peer of transformers: eager PyTorch, greedy and assisted generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from forerun.bench.peers import MAX_CONTEXT, Peer, PeerOptions
from forerun.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CONFIDENCE = 0.0
"""Drafts end below this confidence; transformers' default, 0.4, is not faster on the zoo."""


class TransformersPeer(Peer):
    """Greedy and assisted generation of transformers; sets the threads of torch in this process."""

    def __init__(self, options: PeerOptions) -> None:
        super().__init__("transformers", transformers.__version__)
        precision = "bf16" if options.precision == "stored" else options.precision
        if precision not in DTYPES:
            raise ConfigError(
                f"transformers on CPUs has no {precision}; use {' or '.join(DTYPES)}."
            )
        torch.set_num_threads(options.threads)
        dtype = DTYPES[precision]
        self._target = _model(options.checkpoint_dir, dtype)
        self._draft = _model(options.draft_dir, dtype) if options.draft_dir else None
        self._cache, self._context = transformers.DynamicCache(), 0
        self.settings = {
            "precision": precision,
            "weight_bytes": sum(
                weight.numel() * weight.element_size() for weight in self._target.parameters()
            ),
            "threads": options.threads,
            "attention": "sdpa",
            "torch": torch.__version__,
            "compiled": False,
            "assistant_confidence_threshold": CONFIDENCE,
            "draft": self._draft is not None,
            "max_context": min(MAX_CONTEXT, self._target.config.max_position_embeddings),
        }

    @torch.inference_mode()
    def forward_seconds(self, n: int, context: int) -> float:
        if context != self._context:
            self._cache, self._context = transformers.DynamicCache(), context
            if context:
                self._forward(context)
        started = perf_counter()
        self._forward(n)
        seconds = perf_counter() - started
        self._cache.crop(-n)
        return seconds

    def _forward(self, n: int) -> None:
        ids = torch.ones((1, n), dtype=torch.long)
        self._target(input_ids=ids, past_key_values=self._cache, use_cache=True)

    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int = 0
    ) -> tuple[list[int], float]:
        started = perf_counter()
        output = self._generate(prompt_ids, num_tokens, num_speculative_tokens, do_sample=False)
        seconds = perf_counter() - started
        tokens: list[int] = output[0, len(prompt_ids) :].tolist()
        return tokens, seconds

    @torch.inference_mode()
    def answer(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int,
        **sampling: Any,
    ) -> dict[str, list[Any]]:
        torch.manual_seed(sampling.pop("seed"))
        drawn = {"do_sample": True, **sampling} if sampling["temperature"] else {"do_sample": False}
        output = self._generate(
            prompt_ids,
            num_tokens,
            num_speculative_tokens,
            return_dict_in_generate=True,
            output_logits=True,
            **drawn,
        )
        tokens = output.sequences[0, len(prompt_ids) :]
        rows = torch.cat(output.logits)[: len(tokens)].float().log_softmax(-1)
        logprobs = rows.gather(1, tokens[:, None])[:, 0]
        return {"tokens": tokens.tolist(), "logprobs": logprobs.tolist()}

    def _generate(
        self, prompt_ids: Sequence[int], num_tokens: int, num_speculative_tokens: int, **more: Any
    ) -> Any:
        self.check_request(prompt_ids, num_tokens)
        if num_speculative_tokens and self._draft is None:
            more["prompt_lookup_num_tokens"] = num_speculative_tokens
        elif num_speculative_tokens:
            assert self._draft is not None
            assistant = self._draft.generation_config
            assistant.num_assistant_tokens = num_speculative_tokens
            assistant.num_assistant_tokens_schedule = "constant"
            assistant.assistant_confidence_threshold = CONFIDENCE
            more["assistant_model"] = self._draft
        ids = torch.tensor([list(prompt_ids)])
        return self._target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, **more
        )

    def close(self) -> None:
        self._target = self._draft = self._cache = None


def _model(directory: Path, dtype: torch.dtype) -> Any:
    # Of a GGUF file the weights are unpacked.
    file = {"gguf_file": directory.name} if directory.is_file() else {}
    folder = directory.parent if file else directory
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", **file
    )
    # Without an end token every output has the requested length.
    model.generation_config.eos_token_id = None
    return model.eval()
