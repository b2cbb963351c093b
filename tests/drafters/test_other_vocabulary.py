"""A draft model with another tokenizer changes nothing of what the target says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import forerun
from forerun.core import Drawing, Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.translation import SharedVocabulary, SpelledVocabulary, Translation
from forerun.errors import IncompatibleDraftError
from forerun.models.cpu import CpuModel
from forerun.params import SamplingParams
from forerun.randomness import Randomness
from forerun.testing import ToyModel, check_drafter
from tests.helpers.kernel_models import needs_kernels
from tests.helpers.tiny_models import tiny_config

Config = forerun.SpeculativeConfig
LINES = [
    "the quick brown fox jumps over the lazy dog and then the dog sleeps near the shore",
    "she sells sea shells by the sea shore and the shells that she sells are sea shells",
]
PROMPTS = [
    "the dog sleeps",
    "she",
    "and then the quick fox jumps over the shells of the lazy shore",
]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40),
    "seeded": SamplingParams(temperature=0.7, seed=11, max_tokens=40),
    "nucleus": SamplingParams(top_p=0.9, top_k=9, seed=3, max_tokens=40),
    "penalties": SamplingParams(repetition_penalty=1.2, seed=4, max_tokens=40),
}


def trained(size: int, lines: list[str]) -> Any:
    """A byte-level tokenizer of the letters of these lines, so that any tokens make a text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<end>"], show_progress=False)
    backend.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def network(vocab_size: int, seed: int) -> Any:
    config = tiny_config("qwen3")
    config.vocab_size, config.max_position_embeddings, config.eos_token_id = vocab_size, 256, 0
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    for key, parameter in model.named_parameters():
        # What comes next depends on the latest token more than on how the text before is cut up.
        gain, spread = float("norm" in key), 0.5 if "embed" in key else 0.15
        torch.nn.init.normal_(parameter, mean=gain, std=spread)
    model.tie_weights()
    return model


def save(folder: Path, model: Any, tokenizer: Any) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target, a draft that has its weights and other tokens, and one that has other words."""
    root = tmp_path_factory.mktemp("saved")
    ours, theirs = trained(60, LINES[:1] + LINES), trained(90, LINES[::-1])
    target, draft = network(len(ours), 0), network(len(theirs), 1)
    shared = SharedVocabulary(
        SpelledVocabulary(ours), SpelledVocabulary(theirs), len(ours), len(theirs)
    )
    assert len(shared.target_ids) < min(len(ours), len(theirs))
    tensors = target.state_dict()
    for key, tensor in draft.state_dict().items():
        if "embed" in key or "lm_head" in key:
            tensor[shared.draft_ids] = tensors[key][shared.target_ids]
        else:
            tensor.copy_(tensors[key])
    foreign = trained(60, ["ÀÁÂÃÄÅ 你好"])
    return {
        "target": save(root / "target", target, ours),
        "draft": save(root / "draft", draft, theirs),
        "foreign": save(root / "foreign", network(len(foreign), 2), foreign),
    }


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tree", [None, "auto"], ids=["chain", "tree"])
def test_speculation_changes_nothing(saved: dict[str, str], tree: str | None, rows: int) -> None:
    config = Config(model=saved["draft"], tree=tree, policy="fixed")
    engine = forerun.load(saved["target"], config, device="cpu", max_batch_size=rows)
    assert isinstance(engine.target, CpuModel)
    accepted = drafted = 0
    for params in SAMPLERS.values():
        completions = engine.generate(PROMPTS, params)
        for prompt, completion in zip(PROMPTS, completions, strict=True):
            plain = [event.token_id for event in engine.stream_plain(prompt, params)]
            assert list(completion.token_ids) == plain
        total = forerun.Stats.total(one.stats for one in completions)
        accepted += total.num_accepted_tokens
        drafted += total.num_draft_tokens
    # Some drafts were followed and some were not, so rows were rolled back.
    assert 0 < accepted < drafted


def test_a_draft_of_other_words_is_refused(saved: dict[str, str]) -> None:
    with pytest.raises(IncompatibleDraftError, match=r"foreign has another .*needed: .*'ngram'"):
        forerun.load(saved["target"], Config(model=saved["foreign"]))


def spelled(names: list[str], merges: list[tuple[str, str]]) -> Any:
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


# They share the letters; "ab" and "ca" are the target's alone, "bc", "aa" and "aab" the draft's.
LETTERS = spelled(["a", "b", "ab", "c", "ca"], [("a", "b"), ("c", "a")])
OTHER_LETTERS = spelled(["bc", "c", "aa", "b", "a", "aab"], [("b", "c"), ("a", "a"), ("aa", "b")])
SHARED = {0: 4, 1: 3, 3: 1}
DRAFT = ToyModel(6, seed=5)


def drafter(rows: int = 2) -> DraftModelDrafter:
    translation = Translation(LETTERS, OTHER_LETTERS, "toy", 5, 6)
    return DraftModelDrafter(DRAFT, rows, 256, 5, translation)


@pytest.mark.parametrize(
    "num_tokens", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3))]
)
def test_the_targets_whole_distribution_comes_out(num_tokens: int) -> None:
    """By enumeration, though the draft can propose three of five tokens only."""
    found = check_drafter(drafter(), ToyModel(5), num_tokens=num_tokens)
    assert found.cases > 0
    assert found.largest_deviation < 1e-9


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_rows_are_the_drafts_own_over_what_is_shared(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    for text in ([2, 0, 1], [4, 3], [0, 0, 2, 3, 3, 4, 1]):
        one = Request(0, text, 1, params, seed=len(text), row=0)
        draft = drafter().propose([one], [Plan(4, Drawing.SAMPLED)], Randomness())[0]
        assert len(draft) == 4
        assert isinstance(draft.probs, torch.Tensor)
        assert {*draft.token_ids} <= {*SHARED}
        own = OTHER_LETTERS.encode(LETTERS.decode(text))
        for token, row in zip(draft.token_ids, draft.probs, strict=True):
            logits = DRAFT.next_logits(own)[[*SHARED.values()]] / temperature
            wanted = torch.zeros_like(row)
            wanted[[*SHARED]] = logits.softmax(-1).to(row.dtype)
            torch.testing.assert_close(row, wanted)
            assert row.sum() == pytest.approx(1.0)
            own.append(SHARED[token])


def test_a_text_that_the_draft_cannot_spell_is_decoded_plainly() -> None:
    """It knows no "c"; beside it, others are drafted for."""
    unknown = spelled(["b", "a", "aa"], [("a", "a")])
    translation = Translation(LETTERS, unknown, "toy", 5, 3)
    one = DraftModelDrafter(ToyModel(3), 2, 64, 5, translation)
    requests = [
        Request(row, text, 1, SamplingParams(), seed=0, row=row)
        for row, text in enumerate([[0, 1, 3], [0, 1, 2]])
    ]
    drafts = one.propose(requests, [Plan(2), Plan(2)], Randomness())
    assert [len(draft) for draft in drafts] == [0, 2]
