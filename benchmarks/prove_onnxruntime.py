"""A proof of ONNX Runtime GenAI's lookup, from outside, for docs/peers.md.

python -m onnxruntime_genai.models.builder -i CHECKPOINT -o MODEL -p fp32 -e cpu
python -m benchmarks.prove_onnxruntime CHECKPOINT MODEL PYTHON --temperature 1 --top-p 0.9 --seed 1

CHECKPOINT is a directory of safetensors, PYTHON the interpreter that has onnxruntime-genai and pydantic.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from forerun.bench.peers.process import RemoteEngine

MOST_DRAFTED, LONGEST_NGRAM = 4, 3


class OnnxPeer:
    """A model of ONNX Runtime GenAI on one thread, which answers as peers of `forerun bench` do."""

    def __init__(self, directory: str) -> None:
        self._genai: Any = import_module("onnxruntime_genai")
        config = self._genai.Config(directory)
        config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}')
        self._model = self._genai.Model(config)
        content = json.loads((Path(directory) / "genai_config.json").read_text("utf-8"))
        # The largest top-k: the model's own default may be smaller.
        self._vocab_size = content["model"]["vocab_size"]

    def describe(self) -> dict[str, str]:
        """Name and version."""
        return {"name": "onnxruntime-genai", "version": self._genai.__version__}

    def answer(
        self,
        prompt_ids: Sequence[int],
        num_tokens: int,
        num_speculative_tokens: int,
        *,
        seed: int,
        temperature: float,
        top_k: int,
        top_p: float,
    ) -> dict[str, Any]:
        """Tokens after a prompt, and how many were drafted; see `forerun.bench.peers.Peer.answer`."""
        length = len(prompt_ids) + num_tokens
        options: dict[str, Any] = {
            "max_length": length,
            "min_length": length,
            "do_sample": temperature > 0,
        }
        if temperature:
            options |= {
                "top_k": top_k or self._vocab_size,
                "top_p": top_p,
                "temperature": temperature,
            }
            options["random_seed"] = seed
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(**options)
        if num_speculative_tokens:
            params.set_speculative_options(
                ngram_size=LONGEST_NGRAM, max_draft_tokens=num_speculative_tokens
            )
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(list(prompt_ids))
        while not generator.is_done():
            generator.generate_next_token()
        tokens = [int(token) for token in generator.get_sequence(0)[len(prompt_ids) :]]
        counts = generator.get_speculative_stats() if num_speculative_tokens else {}
        return {"tokens": tokens, "drafted": int(counts.get("draft_tokens_proposed", 0))}


def main() -> None:
    """Prove it, and print the report."""
    from forerun.engine.options import ModelOptions
    from forerun.params import SamplingParams
    from forerun.placement import Placement
    from forerun.proof.effort import Effort
    from forerun.proof.outside.engines import PeerSubject
    from forerun.proof.outside.reference import Reference
    from forerun.proof.outside.report import result_of
    from forerun.proof.outside.run import Subjects, prove_outside
    from forerun.proof.prompts import held_out_prompts
    from forerun.report.terminal import show

    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkpoint", "model", "python"):
        parser.add_argument(name)
    for name in ("temperature", "top_p"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=1.0)
    for name, usual in (("num_tokens", 2000), ("seed", 1)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=usual)
    given = parser.parse_args()
    options = ModelOptions(model=given.checkpoint, placement=Placement(dtype="fp32"))
    reference = Reference(options.load(options.open(), None, max_context=options.max_context))
    effort = Effort(
        seconds=600,
        num_tokens=given.num_tokens,
        output_tokens=32,
        equality_prompts=4,
        seed=given.seed,
        part=("statistics",) if given.temperature else ("equality",),
    )
    with RemoteEngine(
        "onnxruntime-genai",
        maker="benchmarks.prove_onnxruntime:OnnxPeer",
        python=given.python,
        paths=(str(Path(__file__).parents[1]),),
        directory=given.model,
    ) as engine:
        on, off = (
            PeerSubject(name, engine, reference, count, seed)
            for name, count, seed in (
                ("with speculation", MOST_DRAFTED, given.seed * 2**20),
                ("without speculation", 0, (2 * given.seed + 1) * 2**19),
            )
        )
        subjects = Subjects(on, off, reference)
        prompts = [text[-256:] for text in held_out_prompts()]
        params = SamplingParams(temperature=given.temperature, top_p=given.top_p)
        show(result_of(prove_outside(subjects, prompts, params, effort), subjects))


if __name__ == "__main__":
    main()
