"""A compressed cache: approximate, and with a method and a seed the same with drafts and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun.compression import METHODS as KV_METHODS
from forerun.compression import Compression
from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import NO_DRAFT, Draft, Exactness, PlainReason, Plan, Request, Tree
from forerun.drafters.base import BaseDrafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.errors import CacheError, ConfigError, UnknownNameError, UnsupportedModelError
from forerun.kv_cache import CompressedCache, Evicting
from forerun.models import load_model
from forerun.params import SamplingParams
from forerun.proof.effort import Effort
from forerun.proof.proof import prove
from forerun.testing import ToyModel
from tests.helpers.covering import covering
from tests.helpers.interruptions import interrupted_at
from tests.helpers.kernel_models import long_kernel_model, needs_kernels
from tests.helpers.kernel_models import model as kernel_model
from tests.helpers.tiny_models import VOCAB, tiny_model, tokens
from tests.helpers.toy_chat import toy_tokenizer
from tests.matrix import COMPRESSIONS

TEXTS = [tokens(1, length, seed=length)[0].tolist() for length in (19, 1, 7)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=24)
SAMPLERS = {"greedy": GREEDY, "seeded": SEEDED}


ON_KERNELS = [pytest.param(f"kernels-{name}", marks=needs_kernels) for name in ("llama", "qwen3")]
NAMES = ["llama", "gpt2", *ON_KERNELS]
METHODS = pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CausalLM]:
    made: dict[str, CausalLM] = {}

    def get(name: str) -> CausalLM:
        if name.startswith("kernels-"):
            return kernel_model(name.removeprefix("kernels-"))
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            tiny_model(name).save_pretrained(folder)
            made[name] = load_model(folder, dtype="fp64", backend="torch")
        return made[name]

    return get


LONG_TEXTS = [tokens(1, length, seed=length)[0].tolist() for length in (601, 90, 300)]


class Told(BaseDrafter):
    """Drafts what a test tells it: by request and tokens so far, a tree."""

    name = "told"
    draws_trees = True

    def __init__(self, draft_of: Callable[[Request, int], Draft]) -> None:
        self.draft_of = draft_of

    @classmethod
    def build(cls, setup: DrafterSetup) -> Told:
        raise NotImplementedError

    def propose(self, requests: Any, plans: Sequence[Plan], randomness: Any) -> list[Draft]:
        return [
            self.draft_of(request, plan.num_tokens) if plan.num_tokens else NO_DRAFT
            for request, plan in zip(requests, plans, strict=True)
        ]


def engine_of(
    target: CausalLM, compression: Compression, drafter: Any = None, **options: Any
) -> forerun.Engine:
    options = {"num_speculative_tokens": 4, "policy": "fixed", **options}
    config = forerun.SpeculativeConfig(**options)
    return forerun.Engine(
        target, drafter, config, max_batch_size=len(TEXTS), compression=compression
    )


def plain_outputs(target: CausalLM, compression: Compression, params: SamplingParams) -> Any:
    engine = engine_of(target, compression)
    return [[event.token_id for event in engine.stream_plain(text, params)] for text in TEXTS]


def adversaries(outputs: list[list[int]]) -> Iterator[tuple[str, Callable[[Request, int], Draft]]]:
    """Drafts that are right up to some depth and wrong from there on, as chains and beside wrong
    siblings, whose tokens come first and are many."""

    def right(request: Request, count: int) -> list[int]:
        output = outputs[TEXTS.index(request.token_ids[: request.num_prompt_tokens])]
        done = len(request) - request.num_prompt_tokens
        return output[done : done + count]

    def chain(depth: int) -> Callable[[Request, int], Draft]:
        def draft(request: Request, count: int) -> Draft:
            good = right(request, count)
            wrong = [(token + 1) % VOCAB for token in good]
            return Draft.chain([*good[:depth], *wrong[depth:]])

        return draft

    def bushy(request: Request, count: int) -> Draft:
        parents, ids, above = [], [], -1
        for token in right(request, count):
            parents += [above, above, above]
            ids += [(token + 1) % VOCAB, (token + 2) % VOCAB, token]
            above = len(parents) - 1
        return Draft(Tree(tuple(parents)), tuple(ids))

    yield from ((f"right-{depth}", chain(depth)) for depth in range(5))
    yield "bushy", bushy


def check_all(target: CausalLM, compression: Compression, params: SamplingParams) -> int:
    """Whatever is drafted, the output is the plain one; accepted tokens in all."""
    outputs, accepted = plain_outputs(target, compression, params), 0
    for name, draft_of in adversaries(outputs):
        engine = engine_of(target, compression, Told(draft_of))
        completions = engine.generate(TEXTS, params)
        for completion, output in zip(completions, outputs, strict=True):
            assert list(completion.token_ids) == output, name
            accepted += completion.stats.num_accepted_tokens
    return accepted


@pytest.mark.parametrize(("name", "method", "sampler"), covering(NAMES, COMPRESSIONS, SAMPLERS))
def test_drafts_change_nothing(name: str, method: str, sampler: str, load: Any) -> None:
    target, compression, params = load(name), COMPRESSIONS[method], SAMPLERS[sampler]
    assert check_all(target, compression, params) > 100
    whole = plain_outputs(target, Compression(), params)
    assert plain_outputs(target, compression, params) != whole


@needs_kernels
@pytest.mark.parametrize("method", KV_METHODS)
def test_long_texts_of_which_some_evict_more_than_once(method: str) -> None:
    """More tokens than are counted at once and than a tile holds, in a ragged batch and alone."""
    target = long_kernel_model()
    sizes = {"kv_sinks": 3, "kv_recent": 20, "kv_interval": 30}
    compression = Compression(kv_method=method, kv_budget=150, **sizes)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    plain = engine_of(target, compression)
    wanted = [[event.token_id for event in plain.stream_plain(text, params)] for text in LONG_TEXTS]

    def half_right(request: Request, count: int) -> Draft:
        output = wanted[LONG_TEXTS.index(request.token_ids[: request.num_prompt_tokens])]
        done = len(request) - request.num_prompt_tokens
        drafted = output[done : done + count]
        return Draft.chain([*drafted[:2], *[(token + 1) % VOCAB for token in drafted[2:]]])

    engine = engine_of(target, compression, Told(half_right))
    completions = engine.generate(LONG_TEXTS, params)
    assert [list(completion.token_ids) for completion in completions] == wanted
    whole = forerun.Engine(target).generate(LONG_TEXTS[0], params)
    assert list(whole.token_ids) != wanted[0]


@pytest.mark.parametrize(
    ("name", "method"),
    covering(
        ["llama", ON_KERNELS[0]], [name for name, one in COMPRESSIONS.items() if one.kv_budget]
    ),
)
def test_a_rejected_token_that_counts_or_evicts_is_caught(
    method: str, name: str, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: what was drafted is beyond the next eviction when it is verified, or its queries
    are counted before it is known whether it stands."""
    target, compression = load(name), COMPRESSIONS[method]
    keep = Evicting.keep

    def counting(self: Evicting, row: int, length: int, path: Any) -> None:
        log, states = self._logs[row], self._states[row]
        for layer, end in enumerate(log.ends):
            if end > length:
                queries = log.between(layer, length, end, self.dropped[row])
                held = self._held(row, layer, end)
                states[layer] = self.method.count(held, queries, states[layer])
        keep(self, row, length, path)

    def late(self: Evicting, row: int) -> None:
        length, due = self.length(row), self._due[row]
        if due is not None and length > due:
            self._due[row] = length
        evict(self, row)

    evict = Evicting.evict
    with monkeypatch.context() as patch:
        patch.setattr(Evicting, "until_eviction", lambda *_: None)
        patch.setattr(Evicting, "evict", late)
        with pytest.raises(AssertionError):
            check_all(target, compression, GREEDY)
    if compression.make().counts:
        with monkeypatch.context() as patch:
            patch.setattr(Evicting, "keep", counting)
            with pytest.raises(AssertionError):
                check_all(target, compression, GREEDY)


@pytest.mark.parametrize(
    ("name", "method", "sampler"), covering(["llama", ON_KERNELS[0]], COMPRESSIONS, SAMPLERS)
)
def test_with_drafters_of_models(name: str, method: str, sampler: str, load: Any) -> None:
    target, compression, params = load(name), COMPRESSIONS[method], SAMPLERS[sampler]
    outputs = plain_outputs(target, compression, params)
    tree = {"tree": "auto", "num_tree_nodes": 6}
    for drafter, options in (
        (LayerSkipDrafter(target, 1), {}),
        (LayerSkipDrafter(target, 1), {}),
        (DraftModelDrafter(target, len(TEXTS), 64), {}),
        (DraftModelDrafter(target, len(TEXTS), 64), tree),
    ):
        engine = engine_of(target, compression, drafter, **options)
        found = [list(one.token_ids) for one in engine.generate(TEXTS, params)]
        assert found == outputs
        # Another text in the same rows begins anew.
        assert list(engine.generate(TEXTS[0], params).token_ids) == outputs[0]


def steps_interrupted(engine: forerun.Engine, outputs: Any, line: int, stride: int) -> int:
    """Decode all texts, with every second step interrupted, each some lines later than the one before;
    from the beginning again where a step has ended before that."""
    numbers = [engine.add(text, GREEDY) for text in TEXTS]
    while not all(engine._added.running[number].finished for number in numbers):
        try:
            with interrupted_at(line):
                engine.step()
            line = 1 + line % stride
        except KeyboardInterrupt:
            line += stride
            engine.step()
    assert [list(engine.completion(number).token_ids) for number in numbers] == outputs
    return line


INTERRUPTED = [
    *COMPRESSIONS.values(),
    # Queries are left behind an eviction.
    Compression(kv_method="snapkv", kv_budget=9, kv_recent=8, kv_sinks=1, kv_interval=2),
]


@pytest.mark.parametrize("compression", INTERRUPTED, ids=[*COMPRESSIONS, "snapkv-often"])
@pytest.mark.parametrize("name", ["llama", ON_KERNELS[0]])
@pytest.mark.parametrize("runs", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_interrupted_rounds_change_nothing(
    runs: int, name: str, compression: Compression, load: Any
) -> None:
    """Rows are emptied, too, as each run takes those of the one before."""
    target = load(name)
    outputs = plain_outputs(target, compression, GREEDY)
    engine = engine_of(target, compression, LayerSkipDrafter(target, 1))
    line = 1
    for _ in range(runs):
        line = steps_interrupted(engine, outputs, line, 97)


@METHODS
def test_it_says_that_it_is_approximate(compression: Compression, load: Any) -> None:
    engine = engine_of(load("llama"), compression, DraftModelDrafter(load("llama"), 3, 64))
    assert engine.exactness is Exactness.APPROXIMATE
    with pytest.raises(ConfigError, match=f"kv_method '{compression.kv_method}' is approximate"):
        prove(engine, [TEXTS[0]], GREEDY, Effort())
    completion = engine.generate(TEXTS[0], temperature=0, max_tokens=30)
    if compression.kv_budget is not None:
        assert completion.stats.num_plain_rounds_by_reason[PlainReason.EVICTS] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_budget": 64}, "no kv_method is named"),
        ({"kv_method": "h2o"}, "nothing to evict"),
        ({"kv_method": "h2o", "kv_budget": 100}, "4 sinks with 128 recent.*at least 132"),
        ({"kv_method": "h2o", "kv_compression_ratio": 1.0}, "kv_compression_ratio"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Compression(**options)


def test_methods_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match="streaming_llm"):
        Compression(kv_method="streaming", kv_budget=200)


@needs_kernels
def test_targets_that_cannot_evict(load: Any) -> None:
    compression = COMPRESSIONS["h2o"]
    with pytest.raises(UnsupportedModelError, match=r"layers \[0, 1, 2\].* window of 3 tokens"):
        engine_of(load("mistral"), compression)
    with pytest.raises(UnsupportedModelError, match=r"layers \[0, 1, 2\].* window of 5 tokens"):
        engine_of(kernel_model("mistral"), compression)
    with pytest.raises(UnsupportedModelError, match="the same tokens in all heads"):
        engine_of(ToyModel(), compression)
    with pytest.raises(ConfigError, match="must be a forerun"):
        engine_of(load("llama"), "h2o")  # type: ignore[arg-type]
    for target in (load("llama"), load("kernels-llama")):
        with pytest.raises(CacheError, match="another method than self_sparse"):
            engine_of(target, compression, SelfSparseDrafter(target))


def test_load_takes_options_by_name(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    engine = forerun.load(
        tmp_path,
        False,
        backend="torch",
        compression={"kv_method": "tova", "kv_compression_ratio": 0.5},
    )
    assert engine.exactness is Exactness.APPROXIMATE
    assert isinstance(engine._parts.cache, CompressedCache)
