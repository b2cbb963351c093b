"""A target that drafts from a part of its own cache says what it says by itself."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import forerun
from forerun.contracts import CausalLM, ChainRequest
from forerun.core import Draft, Drawing, Request, View
from forerun.drafters import self_sparse
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.errors import CacheError, UnsupportedModelError
from forerun.models import load_model
from forerun.params import SamplingParams
from forerun.testing import check_drafter
from forerun.testing.toy import ToyCache
from tests.helpers.against_plain import accepted
from tests.helpers.backends import BACKENDS
from tests.helpers.covering import covering
from tests.helpers.kernel_models import PRECISIONS, needs_kernels
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.layered import LayeredToyModel
from tests.helpers.tiny_models import random_model, tiny_config, tiny_model, tokens
from tests.matrix import VOCAB

TEXTS = [tokens(1, length, seed=length)[0].tolist() for length in (19, 1, 7)]
NARROW, WIDE = View(1, 2), View(0, 64)
TREES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "tree": {"num_speculative_tokens": 3, "tree": "auto", "num_tree_nodes": 7},
}
GREEDY = SamplingParams(temperature=0, max_tokens=30)
SEEDED = SamplingParams(temperature=0.7, seed=3, max_tokens=30)


def engine_of(target: CausalLM, view: View, **options: Any) -> forerun.Engine:
    config = forerun.SpeculativeConfig(policy="fixed", **options)
    drafter = SelfSparseDrafter(target, view)
    return forerun.Engine(target, drafter, config, max_batch_size=len(TEXTS))


def share_accepted(engine: forerun.Engine, params: SamplingParams) -> float:
    """Every output is plain decoding's; the share of drafted tokens that were accepted."""
    texts = [[token % engine.target.vocab_size for token in text] for text in TEXTS]
    return accepted(engine, texts, params)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, CausalLM] = {}

    def get(name: str) -> CausalLM:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            tiny_model(name).save_pretrained(folder)
            made[name] = load_model(folder, dtype="fp64", backend="torch")
        return made[name]

    return get


@pytest.mark.parametrize(("name", "kind"), covering(["llama", "mistral", "gpt2"], TREES))
def test_plain_decodings_tokens(name: str, kind: str, load: Any) -> None:
    engine = engine_of(load(name), NARROW, **TREES[kind])
    shares = [share_accepted(engine, GREEDY), share_accepted(engine, SEEDED)]
    # Some drafts were followed and some were not, so rows were rolled back.
    assert max(shares) > 0
    assert min(shares) < 1


@needs_kernels
@pytest.mark.parametrize(
    ("name", "precision", "kind"),
    covering(["llama", "mistral", "qwen3", "gpt2"], PRECISIONS, TREES),
)
def test_plain_decodings_tokens_on_the_kernels(name: str, precision: str, kind: str) -> None:
    target = kernel_model(name, precision)
    for one_call in (True, False):
        engine = engine_of(target, NARROW, **TREES[kind])
        drafter: Any = engine.drafter
        drafter._drafts_chains = one_call
        shares = [share_accepted(engine, GREEDY), share_accepted(engine, SEEDED)]
        assert max(shares) > 0
        assert min(shares) < 1
    if kind == "chain":
        assert share_accepted(engine_of(target, WIDE, **TREES[kind]), GREEDY) == 1.0


@pytest.mark.parametrize(("backend", "kind"), covering(BACKENDS, TREES))
def test_blocks_of_long_texts(backend: str, kind: str, tmp_path: Path) -> None:
    """Plain decoding's tokens, and with all blocks more of them are drafted right than with none."""
    config = tiny_config("llama")
    config.max_position_embeddings = 512
    random_model(config).save_pretrained(tmp_path)
    dtype = "fp32" if backend == "kernels" else "fp64"
    target = load_model(tmp_path, dtype=dtype, backend=backend)
    texts = [tokens(1, length, seed=length)[0].tolist() for length in (300, 5, 200)]
    shares = []
    for blocks in (0, 1, 8):
        engine = engine_of(target, View(1, 12, blocks=blocks), **TREES[kind])
        shares.append(accepted(engine, texts, GREEDY))
        accepted(engine, texts, SEEDED)
    assert shares[0] < shares[2]


@needs_kernels
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_chains_in_one_call_are_those_grown_step_by_step(params: SamplingParams) -> None:
    found: list[list[Any]] = []
    for one_call in (True, False):
        engine = engine_of(kernel_model("qwen3", "bf16"), NARROW, **TREES["chain"])
        drafter: Any = engine.drafter
        assert drafter._drafts_chains
        drafter._drafts_chains = one_call
        found.append([])
        engine.watch_rounds(lambda done: found[-1].extend(d.token_ids for d in done.drafts))
        engine.generate(TEXTS, params)
    assert found[0] == found[1]
    assert any(map(len, found[0]))


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_who_reads_everything_drafts_what_it_will_say(params: SamplingParams, load: Any) -> None:
    assert share_accepted(engine_of(load("llama"), WIDE), params) == 1.0


def test_enumerated() -> None:
    target = LayeredToyModel(3, sharpness=1.0)
    drafter = SelfSparseDrafter(target, NARROW)
    assert check_drafter(drafter, target, prompts=[(2, 1, 0)]).cases > 0


def test_it_says_what_it_reads(load: Any) -> None:
    """Of weights and of what of the context: less and less of a plain token as the text grows."""
    target: Any = load("llama")
    bytes_of = 8 * sum(
        weight.numel() for name, weight in target.weights.items() if name.startswith("layers.")
    )
    head, key = 8 * target._head.numel(), 8 * 2 * 2 * 6
    drafter, shares = SelfSparseDrafter(target, View(2, 6)), []
    for length in (4, 8, 60):
        text = Request(0, [1] * length, length, GREEDY, seed=0, row=0)
        share = drafter.cost_share(text) or 0.0
        drafted = head + bytes_of + 3 * key * min(length, 8)
        assert share == pytest.approx(drafted / (head + bytes_of + 3 * key * length))
        shares.append(share)
    assert shares[0] == shares[1] == 1.0 > shares[2]


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_kernels_say_what_they_read(precision: str) -> None:
    """Layer by layer the packed weights and each token's keys and values, and the head once."""
    target = kernel_model("qwen3", precision)
    shape, layers = target.shape, target.num_layers
    key = 2 * shape.num_kv_heads * shape.head_dim * (4 if precision == "fp32" else 2)
    view, empty = View(2, 8, blocks=2), target.bytes_read(0, layers)
    for context, read in ((20, 20), (1000, 10 + 2 * 64)):
        # Besides, mean keys in fp32 of the blocks that are left out.
        means = 4 * shape.num_kv_heads * shape.head_dim * (context - read) / 64
        more = target.bytes_read(context, layers, view) - empty
        assert more == pytest.approx(layers * (key * read + means))
    # Its head is the embedding, so all matrices are read.
    assert target.bytes_read(0, layers) == target.weight_bytes
    assert target.bytes_read(50, layers) - target.bytes_read(0, layers) == 50 * layers * key
    per_layer = (target.bytes_read(7, layers) - target.bytes_read(7, 0)) / layers
    assert target.bytes_read(7, 1) - target.bytes_read(7, 0) == pytest.approx(per_layer)


class Watched(SelfSparseDrafter):
    """Drafts nothing but the first tokens, those of the text and those that the target found likely there.

    `drafts` has them by prompt.
    """

    def __init__(self, target: CausalLM) -> None:
        super().__init__(target, WIDE, draft_vocab_size=3)
        self.found: dict[int, set[int]] = defaultdict(set)
        self.drafts: dict[tuple[int, ...], list[Any]] = defaultdict(list)
        self.unread = 0

    def propose(self, requests: Any, plans: Any, randomness: Any) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        for request, draft in zip(requests, drafts, strict=True):
            read = {0, 1, 2, *request.token_ids}
            assert (read | self.found[request.request_id]).issuperset(draft.token_ids)
            self.unread += len(set(draft.token_ids) - read)
            if draft.token_ids:
                prompt = tuple(request.token_ids[: request.num_prompt_tokens])
                self.drafts[prompt].append(draft.token_ids)
        return drafts

    def observe(self, requests: Any, drafts: Any, verdicts: Any, output: Any) -> None:
        super().observe(requests, drafts, verdicts, output)
        for request, verdict, logits in zip(requests, verdicts, output.logits, strict=True):
            committed = logits[: 1 + len(verdict.path)]
            self.found[request.request_id] |= set(committed.topk(2).indices.flatten().tolist())


@needs_kernels
@pytest.mark.parametrize(("precision", "params"), covering(PRECISIONS, [GREEDY, SEEDED]))
def test_a_part_of_the_vocabulary(
    precision: str, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains draft it alone, for each text what they would alone; the output is plain decoding's."""
    monkeypatch.setattr(self_sparse, "LIKELY_TOKENS", 2)
    target = kernel_model("qwen3", precision)
    # The last is longer than what its row held before.
    texts = [*TEXTS, TEXTS[0][:4], TEXTS[2][:1] * 60]
    found: list[Watched] = []
    for batches in ([texts], [[text] for text in texts]):
        config = forerun.SpeculativeConfig(policy="fixed", num_speculative_tokens=4)
        found.append(Watched(target))
        engine = forerun.Engine(target, found[-1], config, max_batch_size=2)
        for batch in batches:
            accepted(engine, batch, params)
        assert not found[-1]._likely
    assert found[0].drafts == found[1].drafts
    assert found[0].unread > 0
    assert any(len(draft) > 1 for drafts in found[0].drafts.values() for draft in drafts)


@needs_kernels
def test_draws_from_a_part_of_the_vocabulary() -> None:
    """Rows that sampled tokens are drawn from: nothing elsewhere, and one in all."""
    target = kernel_model("qwen3", "bf16")
    cache, text = target.new_cache(1, 64), TEXTS[0]
    sampled = SamplingParams(temperature=1.0)
    request = Request(0, text, len(text), sampled, seed=5, row=0, stop_token_ids=frozenset({9}))
    chain = ChainRequest(0, text, 6, Drawing.SAMPLED, request, 4, [11, 12])
    (draft,) = target.draft_chains(cache, [chain], target.vocab_size)
    assert isinstance(draft.probs, torch.Tensor)
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[[*range(4), 9, 11, 12, *text]] = True
    assert not draft.probs[:, ~known].any()
    assert (draft.probs[:, known] > 0).all()
    assert draft.probs.sum(-1).tolist() == pytest.approx([1.0] * len(draft))


@needs_kernels
def test_the_part_of_the_head_that_is_read() -> None:
    target = kernel_model("qwen3", "int8")
    head = target.bytes_read(0, 0)
    assert target.bytes_spared(0, 1) == pytest.approx(head * (1 - 1 / target.vocab_size))
    assert target.bytes_spared(30, 5) == pytest.approx(head * (1 - 15 / target.vocab_size))
    assert target.bytes_spared(10**6, 5) == target.bytes_spared(0, 10**6) == 0
    text = Request(0, [1] * 30, 30, GREEDY, seed=0, row=0)
    shares = [SelfSparseDrafter(target, NARROW, size).cost_share(text) or 0.0 for size in (0, 5)]
    whole = target.bytes_read(30, target.num_layers)
    assert shares[0] - shares[1] == pytest.approx(target.bytes_spared(30, 5) / whole)


class BrokenError(Exception):
    """What a forward might raise."""


@pytest.mark.parametrize("call", [2, 3, 4])
def test_a_draft_that_fails_leaves_the_cache_as_it_was(
    call: int, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load("llama")
    engine = engine_of(target, NARROW)
    cache: Any = engine._parts.cache
    numbers = [engine.add(text, GREEDY) for text in TEXTS]
    engine.step()
    held = [cache.length(row) for row in range(len(TEXTS))]
    keys = [key.clone() for key in cache.keys]
    forward, calls = type(target).forward, 0

    def failing(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise BrokenError
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(target), "forward", failing)
        engine.step()
    # The round goes on without the drafts that failed.
    assert calls > call
    assert all(cache.length(row) > length for row, length in enumerate(held))
    for key, before in zip(cache.keys, keys, strict=True):
        for row, length in enumerate(held):
            assert torch.equal(key[row, :, :length], before[row, :, :length])
    while not all(engine._added.running[number].finished for number in numbers):
        engine.step()
    for number, text in zip(numbers, TEXTS, strict=True):
        plain = [event.token_id for event in engine.stream_plain(text, GREEDY)]
        assert list(engine.completion(number).token_ids) == plain


def test_drafts_end_with_the_context(load: Any) -> None:
    engine = engine_of(load("llama"), NARROW)
    completion = engine.generate(TEXTS[0], temperature=0, max_tokens=64 - len(TEXTS[0]))
    assert len(completion.token_ids) == 64 - len(TEXTS[0])


def test_targets_that_it_cannot_have(tmp_path: Path) -> None:
    tiny_model("opt").save_pretrained(tmp_path)
    adapted = load_model(tmp_path, dtype="fp32", backend="torch")
    with pytest.raises(UnsupportedModelError, match="cannot draft from a part"):
        SelfSparseDrafter(adapted)


def test_a_cache_that_cannot_be_read_through_its_view_is_refused() -> None:
    """Whatever class it is of: the cache says so itself."""

    class Whole(ToyCache):
        def check_view(self, view: View | None) -> None:
            raise CacheError("this cache is read as a whole.")

    with pytest.raises(CacheError, match="read as a whole"):
        SelfSparseDrafter(LayeredToyModel(VOCAB), NARROW).attach(Whole(1, 8))
