"""`custom_generate=forerun.hf.generate` gives what transformers' own loop gives."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

import forerun
import forerun.hf
from forerun.errors import (
    ConfigError,
    ForerunError,
    PromptError,
    UnknownNameError,
    UnsupportedModelError,
)
from forerun.testing import ToyModel
from tests.helpers.tiny_models import random_model, tiny_config, tiny_model

FAMILIES = ["gpt2", "llama", "gemma2"]
families = pytest.mark.parametrize("family", FAMILIES)
PROMPT = torch.tensor([[5, 6, 7, 5, 6, 7, 5]])
PADDED = torch.tensor([[0, 0, 0, 5, 6], [9, 8, 7, 9, 8], [0, 4, 5, 4, 5]])
MASK = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
MODELS: dict[str, Any] = {}


def model(family: str) -> Any:
    """With the same weights each time, and settings of its own."""
    if family not in MODELS:
        MODELS[family] = tiny_model(family)
        MODELS[family].generation_config.pad_token_id = 0
    return MODELS[family]


def both(made: Any, inputs: Any = PROMPT, **options: Any) -> tuple[Any, Any]:
    """What transformers makes, and forerun in its place."""
    options = {"max_new_tokens": 16, "do_sample": False, **options}
    theirs = made.generate(inputs, **options)
    return theirs, made.generate(inputs, custom_generate=forerun.hf.generate, **options)


def same(theirs: Tensor, ours: Tensor) -> None:
    assert theirs.tolist() == ours.tolist()
    assert (theirs.dtype, theirs.device) == (ours.dtype, ours.device)


@families
def test_greedy_text_is_the_models_own(family: str) -> None:
    same(*both(model(family)))


@families
def test_so_it_is_for_a_batch_with_padding(family: str) -> None:
    same(*both(model(family), PADDED, attention_mask=MASK))


@families
def test_a_batch_encoding_is_unpacked_as_usual(family: str) -> None:
    inputs = {"input_ids": PADDED, "attention_mask": MASK}
    made = model(family)
    expected = made.generate(**inputs, max_new_tokens=9, do_sample=False)
    options: dict[str, Any] = {**inputs, "max_new_tokens": 9, "do_sample": False}
    same(expected, made.generate(**options, custom_generate=forerun.hf.generate))


def end_of(made: Any, row: Tensor, count: int) -> int:
    """The token that the greedy text of a row holds as its `count`-th new one."""
    ids = made.generate(row[None], max_new_tokens=count, do_sample=False, eos_token_id=None)
    return int(ids[0, -1])


@families
@pytest.mark.parametrize("count", [1, 3])
def test_texts_end_where_the_model_ends_them(family: str, count: int) -> None:
    made = model(family)
    ends = [end_of(made, PADDED[1], count), 60]
    same(*both(made, PADDED, attention_mask=MASK, eos_token_id=ends))


OPTIONS: dict[str, dict[str, Any]] = {
    "max_length": {"max_new_tokens": None, "max_length": 12},
    "min_new_tokens": {"min_new_tokens": 5, "eos_token_id": list(range(0, 61, 2))},
    "min_length": {"min_length": 9, "eos_token_id": list(range(0, 61, 2))},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[6], [7, 5]]},
    "suppress_tokens": {"suppress_tokens": list(range(10))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(30))},
    "forced_eos_token_id": {"forced_eos_token_id": 3},
    "renormalize_logits": {"renormalize_logits": True},
    "remove_invalid_values": {"remove_invalid_values": True},
    "all": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_settings_are_honoured(options: dict[str, Any]) -> None:
    same(*both(model("llama"), **options))
    same(
        *both(model("llama"), PADDED, attention_mask=MASK, **{"repetition_penalty": 1.0, **options})
    )


def test_a_prefix_function_is_honoured_for_one_prompt() -> None:
    def even(_: int, ids: Tensor) -> list[int]:
        return list(range(int(ids[-1]) % 2, 61, 2))

    same(*both(model("llama"), prefix_allowed_tokens_fn=even))
    with pytest.raises(ConfigError, match="PrefixConstrained"):
        both(model("llama"), PADDED, attention_mask=MASK, prefix_allowed_tokens_fn=even)


SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.4},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.4},
    "all": {"temperature": 0.8, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
}


@pytest.mark.parametrize("options", SAMPLED.values(), ids=SAMPLED.keys())
def test_sampling_draws_from_the_same_distribution(options: dict[str, Any]) -> None:
    """Of the first token, over many rows."""
    made = model("llama")
    options = {"do_sample": True, "max_new_tokens": 1, "num_return_sequences": 400, **options}
    torch.manual_seed(0)
    theirs, ours = both(made, **options)
    shares = [torch.bincount(ids[:, -1], minlength=61) / 400 for ids in (theirs, ours)]
    assert len(set(ours[:, -1].tolist())) <= options.get("top_k", 61)
    # Five standard deviations of a difference of two such shares.
    assert (shares[0] - shares[1]).abs().max() < 5 * (0.5 / 400) ** 0.5


def test_sampling_is_repeated_by_torch_s_seed() -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12}
    options["custom_generate"] = forerun.hf.generate
    texts = set()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.add(tuple(model("llama").generate(PROMPT, **options)[0].tolist()))
    assert len(texts) == 2


class EndsAt(StoppingCriteria):  # type: ignore[misc]
    """Ends a row when it holds a token twice in its output."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        last = input_ids[:, -1:]
        return (input_ids[:, 5:] == last).sum(1) > 1


def test_stopping_criteria_are_asked_after_each_token() -> None:
    criteria = StoppingCriteriaList([EndsAt(), MaxTimeCriteria(1000)])
    for inputs in ({"inputs": PROMPT}, {"inputs": PADDED, "attention_mask": MASK}):
        same(*both(model("llama"), **inputs, stopping_criteria=criteria))


class Recorder(BaseStreamer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.put_ids: list[int] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.put_ids += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


@families
def test_a_streamer_gets_every_token_and_the_end(family: str) -> None:
    theirs, ours = Recorder(), Recorder()
    options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
    expected = model(family).generate(PROMPT, streamer=theirs, **options)
    custom = forerun.hf.generate
    model(family).generate(PROMPT, streamer=ours, custom_generate=custom, **options)
    assert ours.put_ids == theirs.put_ids == expected[0].tolist()
    assert ours.ended == theirs.ended == 1
    options |= {"attention_mask": MASK, "custom_generate": custom}
    with pytest.raises(ConfigError, match="one prompt, not 3"):
        model(family).generate(PADDED, streamer=ours, **options)


def test_the_result_is_a_dictionary_where_asked() -> None:
    theirs, ours = both(model("llama"), return_dict_in_generate=True)
    same(theirs.sequences, ours.sequences)
    assert type(theirs) is type(ours)


@pytest.mark.parametrize("drafter", ["suffix", "token_recycling"])
def test_the_drafter_can_be_chosen(drafter: str) -> None:
    made = model("llama")
    ours = made.generate(
        PROMPT, max_new_tokens=16, custom_generate=forerun.hf.generate, drafter=drafter
    )
    same(made.generate(PROMPT, max_new_tokens=16), ours)
    assert made._forerun.engine.drafter.name == drafter
    options = {"max_new_tokens": 4, "custom_generate": forerun.hf.generate}
    made.generate(PROMPT, speculative={"method": "ngram", "num_speculative_tokens": 2}, **options)
    assert made._forerun.engine.config.num_speculative_tokens == 2
    with pytest.raises(UnknownNameError, match="Did you mean 'suffix'"):
        made.generate(PROMPT, drafter="sufix", **options)


def test_the_engine_is_kept_and_made_anew_when_weights_change() -> None:
    made = tiny_model("llama")
    same(*both(made))
    first = made._forerun.engine
    same(*both(made))
    assert made._forerun.engine is first
    with torch.no_grad():
        made.lm_head.weight.mul_(-1)
    same(*both(made))
    assert made._forerun.engine is not first


def test_what_is_kept_goes_with_the_model() -> None:
    for family in FAMILIES:
        made = tiny_model(family)
        both(made)
        watched = weakref.ref(made)
        del made
        gc.collect()
        assert watched() is None, family


def test_a_model_can_still_be_copied_and_saved() -> None:
    made = tiny_model("llama")
    both(made)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        same(*both(other))
        assert other._forerun.engine is not made._forerun.engine
    assert "_forerun" not in made.state_dict()


class Odd(LogitsProcessor):  # type: ignore[misc]
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores * 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "ask for beam_search"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
    "dola": ({"dola_layers": "low"}, "dola"),
    "scores": ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
    "processor": ({"logits_processor": LogitsProcessorList([Odd()])}, "cannot apply .* Odd"),
    "typical": ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
    "guidance": ({"guidance_scale": 1.5}, "ask for guidance"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_forerun_does_not_have_is_refused(name: str) -> None:
    options, problem = REFUSED[name]
    options = {"max_new_tokens": 4, "custom_generate": forerun.hf.generate, **options}
    with pytest.raises(ConfigError, match=problem) as refusal:
        model("llama").generate(PROMPT, **options)
    assert "\n" not in str(refusal.value)


def test_an_assistant_drafts() -> None:
    """As transformers' users ask for it; 7 tokens of draft at most."""
    made, assistant = tiny_model("llama"), tiny_model("qwen3")
    options: dict[str, Any] = {"assistant_model": assistant, "num_assistant_tokens": 7}
    same(*both(made, **options))
    engine = made._forerun.engine
    assert engine.drafter.name == "draft_model"
    assert engine.config.num_speculative_tokens == 7
    same(*both(made, **options))
    assert made._forerun.engine is engine
    with torch.no_grad():
        assistant.lm_head.weight.mul_(-1)
    same(*both(made, **options))
    assert made._forerun.engine is not engine
    same(*both(made))
    assert made._forerun.engine.drafter.name == "suffix"


def test_an_assistant_of_another_vocabulary_is_refused() -> None:
    made = tiny_model("llama")
    options: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": forerun.hf.generate}
    config = tiny_config("llama")
    config.vocab_size = 40
    other = random_model(config)
    with pytest.raises(ConfigError, match="the target has 61 tokens and the draft model 40"):
        made.generate(PROMPT, assistant_model=other, **options)
    with pytest.raises(ConfigError, match="two drafters"):
        made.generate(PROMPT, assistant_model=made, prompt_lookup_num_tokens=3, **options)
    with pytest.raises(ConfigError, match="takes no draft model"):
        made.generate(PROMPT, assistant_model=model("gpt2"), drafter="suffix", **options)


def test_a_lookup_drafts() -> None:
    made = tiny_model("llama")
    same(*both(made, prompt_lookup_num_tokens=3, max_matching_ngram_size=2))
    engine = made._forerun.engine
    assert engine.drafter.name == "ngram"
    assert engine.config.num_speculative_tokens == 3
    assert engine.config.options == {"prompt_lookup_max": 2}


def test_other_drafters_of_transformers_are_refused() -> None:
    options: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": forerun.hf.generate}
    with pytest.raises(ConfigError, match="assistant_early_exit is set"):
        model("llama").generate(PROMPT, assistant_early_exit=1, **options)


def test_a_filled_cache_is_refused() -> None:
    made = model("llama")
    options: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": forerun.hf.generate}
    cache = made(PROMPT[:, :4]).past_key_values
    with pytest.raises(ConfigError, match="past_key_values holds tokens"):
        made.generate(PROMPT, past_key_values=cache, **options)
    with pytest.raises(ConfigError, match=r"give it to model\.generate"):
        forerun.hf.generate(made, PROMPT, max_new_tokens=3)
    for ids in (PROMPT[0], PROMPT.float(), PROMPT[:0], "ab", None):
        with pytest.raises(PromptError, match="input_ids"):
            forerun.hf.generate(made, ids)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="token ids alone"):
        made.generate(inputs_embeds=torch.zeros(1, 3, 24), **options)


def test_models_that_cannot_run_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"call model\.generate"):
        forerun.hf.generate(ToyModel(), PROMPT)
    made = tiny_model("gpt_neox")
    made.train()
    with pytest.raises(ConfigError, match=r"model\.eval"):
        made.generate(PROMPT, max_new_tokens=2, custom_generate=forerun.hf.generate)
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=61, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(UnsupportedModelError, match="recurrent"):
        forerun.hf.generate(MambaForCausalLM(config), PROMPT)


def test_a_criterion_that_fails_leaves_the_engine_free() -> None:
    class Fails(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            raise RuntimeError("planted")

    made = model("llama")
    with pytest.raises(RuntimeError, match="planted"):
        both(made, stopping_criteria=StoppingCriteriaList([Fails()]))
    made.generate(PROMPT, max_new_tokens=2, custom_generate=forerun.hf.generate)
    assert not made._forerun.engine.has_work
    same(*both(made))


def test_the_package_finds_it() -> None:
    assert forerun.hf.generate is not None
    with pytest.raises(ForerunError):
        forerun.hf.generate(None, PROMPT)
