"""forerun beside llama.cpp on the same GGUF files: perplexity, greedy texts, and speed in turns.

python -m benchmarks.beside_llama_cpp model.gguf --bin llama.cpp/build/bin --perplexity --texts --rounding
python -m benchmarks.beside_llama_cpp model.gguf other.gguf --bin llama.cpp/build/bin --speed
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from benchmarks.groups.report import paired_ratio
from benchmarks.questions import SETS, load_questions
from benchmarks.shapes import build
from forerun.bench.forwards import use_threads
from forerun.core import Batch, LogitsFor
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu import CpuModel
from forerun.models.cpu.cache import CpuCache
from forerun.models.run_config import STORED
from forerun.models.running import common_prefix
from forerun.report.machine import versions

ROOT = Path(__file__).parents[1]
# As llama-perplexity has them: of each chunk the second half is scored.
CHUNK = 512
# Tokens of a prefill, of a check, and of a text that is decoded.
PREFILL, CHECKED, DECODED = 512, 8, 64


@dataclass(frozen=True)
class Peer:
    """Programs of llama.cpp.

    Args:
        folder: holds them, and their libraries.
        threads: threads that each uses.
    """

    folder: Path
    threads: int

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of them to its end."""
        command = [str(self.folder / program), *arguments, "-t", str(self.threads)]
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.folder)}
        return subprocess.run(command, env=env, text=True, capture_output=True, check=True)

    def perplexity(self, file: str, text: Path) -> float:
        """Perplexity of a text by llama-perplexity."""
        done = self.run("llama-perplexity", "-m", file, "-f", str(text), "-c", str(CHUNK))
        found = re.search(r"PPL = ([\d.]+)", done.stdout + done.stderr)
        assert found, done.stderr[-500:]
        return float(found[1])

    def continued(self, file: str, prompt: str, count: int) -> str:
        """Greedy text after a prompt."""
        options = ("--temp", "0", "-no-cnv", "--no-display-prompt", "--no-warmup", "--no-escape")
        done = self.run("llama-completion", "-m", file, "-p", prompt, "-n", str(count), *options)
        return done.stdout

    def speeds(self, file: str) -> tuple[list[float], str]:
        """Seconds of a decoded token, a prefill and a check by llama-bench, and its version."""
        sizes = ("-p", f"{PREFILL},{CHECKED}", "-n", str(DECODED), "-r", "1", "-o", "json")
        rows = json.loads(self.run("llama-bench", "-m", file, *sizes).stdout)
        tokens = {(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in rows}
        rates = (tokens[0, DECODED], tokens[PREFILL, 0], tokens[CHECKED, 0])
        seconds = [n / rate for n, rate in zip((1, PREFILL, CHECKED), rates, strict=True)]
        return seconds, f"b{rows[0]['build_number']}"


def perplexity(model: CpuModel, tokenizer: Any, text: str) -> float:
    """Perplexity of a text as llama-perplexity measures it, chunk by chunk."""
    ids = tokenizer.encode(text)
    bos = tokenizer.bos_token_id if tokenizer.encode("a")[0] == tokenizer.bos_token_id else None
    cache, nats, scored, half = model.new_cache(1, CHUNK), 0.0, 0, CHUNK // 2
    for start in range(0, len(ids) - CHUNK + 1, CHUNK):
        chunk = ids[start : start + CHUNK]
        chunk[0] = chunk[0] if bos is None else bos
        cache.trim(0, 0)
        model.forward(Batch.after(cache, [0], [chunk[:half]], logits_for="none"), cache)
        logits = model.forward(Batch.after(cache, [0], [chunk[half:-1]]), cache).logits
        assert logits is not None
        wanted = torch.tensor(chunk[half + 1 :])
        nats += functional.cross_entropy(logits[0], wanted, reduction="sum").item()
        scored += len(wanted)
    return math.exp(nats / scored)


def continued(model: CpuModel, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
    """Greedy tokens after a prompt, each with its margin: how far its logit is above the second."""
    cache, found, pending = model.new_cache(1, len(ids) + count), [], list(ids)
    for _ in range(count):
        logits = model.forward(Batch.after(cache, [0], [pending], logits_for="last"), cache).logits
        assert logits is not None
        (first, second), (token, _) = (part.tolist() for part in logits[0, 0].topk(2))
        found.append((token, first - second))
        pending = [token]
    return found


def usual_prompts() -> list[str]:
    """20 questions of all sets."""
    prompts = [q.turns[0] for category in SETS for q in load_questions(category, 20)]
    return random.Random(0).sample([p for p in prompts if len(p) < 600], 20)


@torch.no_grad()
def compare_rounding(file: str, tokenizer: Any, count: int) -> None:
    """Print how often the tokens of greedy texts are transformers' in fp32, after the same tokens."""
    config = AutoConfig.from_pretrained(Path(file).parent, gguf_file=Path(file).name)
    theirs = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=theirs)
    theirs.load_state_dict(read["tensors"], strict=False)
    theirs.tie_weights()
    prompts = [tokenizer.encode(prompt) for prompt in usual_prompts()]
    for precision in ("fp32", STORED):
        model, same, whole = build(file, precision), 0, 0
        for ids in prompts:
            text = [token for token, _ in continued(model, ids, count)]
            logits = theirs(torch.tensor([[*ids, *text[:-1]]]), logits_to_keep=count).logits
            right = logits[0].argmax(-1) == torch.tensor(text)
            same, whole = same + int(right.sum()), whole + bool(right.all())
        print(
            f"{precision}: {same} of {count * len(prompts)} tokens are fp32's, {whole} texts whole"
        )


def compare_texts(file: str, model: CpuModel, tokenizer: Any, peer: Peer, count: int) -> None:
    """Print where greedy texts of 20 prompts part, with the margin of the token there."""
    same, prompts = 0, usual_prompts()
    for number, prompt in enumerate(prompts, 1):
        theirs = peer.continued(file, prompt, count)
        ours = continued(model, tokenizer.encode(prompt), count)
        ids, margins = [token for token, _ in ours], [margin for _, margin in ours]
        # An end of text is not written; a character may be cut off at the end.
        text, theirs = tokenizer.decode(ids, True).lstrip(), theirs.lstrip()
        pairs = zip(text, theirs, strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if common >= min(len(text.rstrip("\ufffd \n")), len(theirs.rstrip())):
            same += 1
            continue
        # One may write a token that begins as the other's does: A, and Amy.
        first, second = (tokenizer.encode(t, add_special_tokens=False) for t in (text, theirs))
        common = len(tokenizer.decode(first[: common_prefix(first, second)]))
        at = next(
            n for n in range(count) if len(tokenizer.decode(ids[: n + 1], True).lstrip()) > common
        )
        print(f"  prompt {number}: parts at token {at + 1}, margin {margins[at]:.4f}")
    print(f"greedy texts of {count} tokens: {same} of {len(prompts)} the same")


def our_speeds(model: CpuModel, cache: CpuCache) -> list[float]:
    """Seconds of a decoded token, a prefill and a check, as llama-bench takes them: on random tokens."""

    def timed(tokens: int, times: int, which: LogitsFor) -> float:
        cache.trim(0, 0)
        started = perf_counter()
        for _ in range(times):
            ids = [random.randrange(model.vocab_size) for _ in range(tokens)]
            batch = Batch.after(cache, [0], [ids], logits_for=which)
            model.forward(batch, cache)
        return (perf_counter() - started) / times

    # A check needs the logits of all its tokens, of which llama-bench computes the last alone.
    return [timed(1, DECODED, "last"), timed(PREFILL, 1, "last"), timed(CHECKED, 1, "all")]


def compare_speeds(file: str, model: CpuModel, peer: Peer, turns: int) -> None:
    """Print speeds measured in turns: medians, and the median ratio with its spread."""
    cache, ours, theirs, version = model.new_cache(1, PREFILL), [], [], ""
    our_speeds(model, cache)
    for _ in range(turns):
        ours.append(our_speeds(model, cache))
        seconds, version = peer.speeds(file)
        theirs.append(seconds)
    print(f"forerun {versions()['forerun']}, llama.cpp {version}, {turns} turns")
    names = ("plain, a token", f"prefill of {PREFILL}", f"checking {CHECKED}")
    for name, mine, other in zip(
        names, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True
    ):
        ratio, around = paired_ratio(mine, other)
        medians = [1e3 * statistics.median(seconds) for seconds in (mine, other)]
        print(f"  {name}: {medians[0]:.2f} and {medians[1]:.2f} ms, {ratio:.2f} x ({around})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_llama_cpp")
    parser.add_argument("files", nargs="+", help="GGUF files")
    parser.add_argument("--bin", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--perplexity", action="store_true")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "theory.md")
    parser.add_argument("--texts", action="store_true", help="greedy texts of 20 prompts")
    parser.add_argument("--tokens", type=int, default=48, help="of each text")
    parser.add_argument("--rounding", action="store_true", help="beside transformers in fp32")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    use_threads(options.threads)
    peer = Peer(options.bin, options.threads)
    for file in options.files:
        print(file, flush=True)
        model, tokenizer = build(file, STORED), Checkpoint.open(file).tokenizer
        if options.perplexity:
            ours = perplexity(model, tokenizer, options.text.read_text("utf-8"))
            theirs = peer.perplexity(file, options.text)
            print(f"perplexity: forerun {ours:.4f}, llama.cpp {theirs:.4f}", flush=True)
        if options.texts:
            compare_texts(file, model, tokenizer, peer, options.tokens)
        if options.rounding:
            compare_rounding(file, tokenizer, options.tokens)
        if options.speed:
            compare_speeds(file, model, peer, options.turns)


if __name__ == "__main__":
    main()
