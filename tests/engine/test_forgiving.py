"""What `load` and an engine take, what they refuse in our own words, and how they show themselves."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import forerun
from forerun.core import Draft, Plan, Request
from forerun.drafters.base import LookupDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.engine.engine import Engine
from forerun.engine.resolve import LoadOptions
from forerun.engine.settings import EngineOptions, EngineSettings
from forerun.errors import CheckpointError, ConfigError, ForerunError, UnknownNameError
from forerun.models import Checkpoint, Placement, load_model
from forerun.policies import make_policy
from forerun.policies.fixed import FixedPolicy
from tests.helpers.engines import GREEDY, Letters, engine
from tests.helpers.made_tokenizers import words
from tests.helpers.tiny_models import VOCAB, tiny_model
from tests.matrix import TARGET

NAMES = words([f"t{number}" for number in range(VOCAB)])
PROMPT = [5, 6, 7, 5, 6]
SHORT = forerun.SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tiny_model("llama").save_pretrained(folder)
    NAMES.save_pretrained(folder)
    return folder


def greedy_ids(model: Any, prompt: list[int], count: int = 8) -> tuple[int, ...]:
    """What transformers decodes."""
    model.generation_config.eos_token_id = None
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tuple(ids[0, len(prompt) :].tolist())


def test_a_path_and_its_text_are_one_model(saved: Path) -> None:
    by_path = forerun.load(saved).generate(PROMPT, SHORT)
    assert forerun.load(str(saved)).generate(PROMPT, SHORT).token_ids == by_path.token_ids


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *[(torch.bfloat16, "bf16"), ("bfloat16", "bf16"), ("torch.bfloat16", "bf16")],
        *[(torch.float16, "fp16"), ("float16", "fp16"), ("half", "fp16")],
        *[(torch.float32, "fp32"), ("float32", "fp32"), (torch.float64, "fp64"), ("auto", "auto")],
    ],
)
def test_dtypes_go_by_any_of_their_names(dtype: Any, name: str) -> None:
    assert Placement(dtype=dtype).dtype == name


def test_a_dtype_and_a_device_of_torch_reach_the_model(saved: Path) -> None:
    one = forerun.load(saved, dtype=torch.bfloat16, device=torch.device("cpu"), backend="torch")
    assert one.target.dtype is torch.bfloat16
    with pytest.raises(UnknownNameError, match="Did you mean 'bf16'"):
        forerun.load(saved, dtype="bf61")
    with pytest.raises(UnknownNameError, match=r"torch\.int64"):
        forerun.load(saved, dtype=torch.int64)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2", "opt"])
def test_a_model_in_memory_runs_as_it_is(family: str) -> None:
    """Forerun's own decoders and the adapter."""
    model = tiny_model(family)
    loaded = forerun.load(model, tokenizer=NAMES, backend="torch")
    expected = greedy_ids(model, PROMPT)
    assert loaded.generate(PROMPT, SHORT, ignore_eos=True).token_ids == expected
    assert loaded.eos_token_ids == {3}
    assert loaded.generate("t5 t6", SHORT).prompt_ids == (5, 6)
    assert type(model).__name__ in repr(loaded)


def test_a_model_in_memory_needs_no_tokenizer_for_ids() -> None:
    loaded = forerun.load(tiny_model("llama"))
    assert loaded.generate(PROMPT, SHORT).prompt_ids == tuple(PROMPT)
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        loaded.generate("t5")
    with pytest.raises(ConfigError, match="tokenizer="):
        forerun.load(tiny_model("llama"), {"model": "zoo-draft"})


def test_a_model_in_memory_brings_its_defaults() -> None:
    model = tiny_model("llama")
    model.generation_config.update(do_sample=True, temperature=0.6, top_k=5)
    assert forerun.load(model).sampling_defaults == {"temperature": 0.6, "top_k": 5}
    model.generation_config.temperature = -1.0
    with pytest.raises(CheckpointError, match=r"temperature is -1\.0"):
        forerun.load(model)


def test_a_model_in_memory_that_cannot_run_is_refused() -> None:
    adapted = tiny_model("opt")
    with pytest.raises(ConfigError, match=r"model\.to"):
        forerun.load(adapted, dtype="bf16")
    adapted.train()
    with pytest.raises(ConfigError, match=r"model\.eval"):
        forerun.load(adapted)
    with pytest.raises(ConfigError, match="comes too late"):
        forerun.load(tiny_model("llama"), revision="main")
    layer: Any = torch.nn.Linear(2, 2)
    layer.config = {"hidden_size": 2}
    with pytest.raises(ForerunError, match="not a causal language model"):
        forerun.load(layer)
    with pytest.raises(ForerunError, match="AutoModelForCausalLM"):
        forerun.load(tiny_model("llama").model)
    for value in (None, 7, ["zoo"], NAMES, tiny_model("llama").config):
        with pytest.raises(ConfigError, match="a name, a path, a Checkpoint, or a model of transf"):
            forerun.load(value)
    with pytest.raises(ConfigError, match=r"forerun\.load"):
        Engine(tiny_model("llama"))
    with pytest.raises(
        UnknownNameError, match=r"argument of Engine 'draftr'.* Did you mean 'drafter'"
    ):
        Engine(TARGET, draftr=NgramDrafter())  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"forerun\.Engine"):
        forerun.load(TARGET)


def test_a_config_may_be_a_mapping(saved: Path) -> None:
    one = forerun.load(saved, {"method": "ngram", "prompt_lookup_max": 2})
    assert one.config == forerun.SpeculativeConfig(method="ngram", options={"prompt_lookup_max": 2})
    with pytest.raises(UnknownNameError, match="Did you mean 'method'"):
        forerun.load(saved, {"methd": "ngram"})
    with pytest.raises(ConfigError, match="a mapping of its fields"):
        forerun.load(saved, "ngram")  # type: ignore[arg-type]


def test_a_drafter_goes_by_name_or_is_made_already(saved: Path) -> None:
    named = forerun.load(saved, drafter="suffix")
    assert named.drafter is not None
    assert named.drafter.name == "suffix"
    made = NgramDrafter(1, 2)
    one = forerun.load(saved, {"num_speculative_tokens": 2}, drafter=made)
    assert one.drafter is made
    assert one.generate(PROMPT, SHORT).token_ids == named.generate(PROMPT, SHORT).token_ids
    with pytest.raises(UnknownNameError, match="Did you mean 'ngram'"):
        forerun.load(saved, drafter="ngrm")


def test_how_to_speculate_goes_by_name_as_on_the_command_line(saved: Path) -> None:
    one = forerun.load(saved, method="ngram", num_speculative_tokens=3, max_batch_size=2)
    assert one.config == forerun.SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert one.max_batch_size == 2
    more: Any = {"prompt_lookup_max": 2}
    one = forerun.load(saved, {"method": "ngram"}, **more)
    assert one.config.options == {"prompt_lookup_max": 2}
    with pytest.raises(ConfigError, match="method is given beside speculative"):
        forerun.load(saved, {"method": "ngram"}, method="ngram")
    with pytest.raises(ConfigError, match="leave one of them out"):
        forerun.load(saved, forerun.SpeculativeConfig(), method="ngram")
    with pytest.raises(ConfigError, match="speculative is False"):
        forerun.load(saved, False, method="ngram")
    assert LoadOptions.__annotations__.keys() <= {
        *EngineOptions.__annotations__,
        *(_RENAMED.get(field.name, field.name) for field in fields(forerun.SpeculativeConfig)),
    }


def test_type_checkers_see_misspelt_options(saved: Path) -> None:
    """As do these lines: an error that they ignore and that is not there would be one itself."""
    with pytest.raises(UnknownNameError, match="Did you mean 'method'"):
        forerun.load(saved, methd="ngram")  # type: ignore[call-arg]
    with pytest.raises(UnknownNameError, match="Did you mean 'max_context'"):
        Engine(TARGET, max_contxt=9)  # type: ignore[call-arg]
    with pytest.raises(UnknownNameError, match="Did you mean 'temperature'"):
        Engine(TARGET).generate(PROMPT, temperatur=0)  # type: ignore[call-overload]


def test_type_checkers_know_the_settings_of_an_engine() -> None:
    assert EngineOptions.__annotations__.keys() == {field.name for field in fields(EngineSettings)}


_RENAMED = {"model": "draft_model", "revision": "draft_revision"}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("n_ctx", "max_context"),
        ("max_model_len", "max_context"),
        ("n_parallel", "max_batch_size"),
        ("assistant_model", "draft_model"),
        ("gamma", "num_speculative_tokens"),
    ],
)
def test_names_of_other_engines_are_corrected(saved: Path, name: str, ours: str) -> None:
    options: Any = {name: 64}
    with pytest.raises(ConfigError, match=f"{name} is called {ours} here"):
        forerun.load(saved, **options)


def test_a_draft_model_may_be_in_memory(saved: Path) -> None:
    target, draft = tiny_model("llama"), tiny_model("qwen3")
    one = forerun.load(target, draft_model=draft, num_speculative_tokens=3, backend="torch")
    assert one.drafter is not None
    assert one.drafter.name == "draft_model"
    expected = greedy_ids(target, PROMPT)
    assert one.generate(PROMPT, SHORT, ignore_eos=True).token_ids == expected
    opened = Checkpoint.open(saved)
    two = forerun.load(tiny_model("llama"), draft_model=opened, tokenizer=opened.tokenizer)
    assert two.config.model == str(saved)
    with pytest.raises(ConfigError, match="draft_model is 7; it must be a name"):
        forerun.load(saved, draft_model=7)


def test_a_drafter_that_is_given_needs_no_build(saved: Path) -> None:
    class Repeats(LookupDrafter):
        name = "repeats"

        def draft(self, request: Request, plan: Plan) -> Draft:
            return Draft.chain(request.token_ids[-1:] * plan.num_tokens)

    one = forerun.load(saved, drafter=Repeats())
    expected = forerun.load(saved, False).generate(PROMPT, SHORT).token_ids
    assert one.generate(PROMPT, SHORT).token_ids == expected
    with pytest.raises(ConfigError, match="Repeats defines no build"):
        Repeats.build(Any)  # type: ignore[arg-type]


def test_a_checkpoint_without_a_tokenizer_runs_on_ids(tmp_path: Path) -> None:
    made = tiny_model("llama")
    made.save_pretrained(tmp_path)
    one = forerun.load(tmp_path, backend="torch")
    assert one.generate(PROMPT, SHORT, ignore_eos=True).token_ids == greedy_ids(made, PROMPT)
    assert one.generate(PROMPT, SHORT).text == ""
    with pytest.raises(ConfigError, match="a prompt as text needs a tokenizer"):
        one.generate("t5")


def test_a_completion_is_ready_for_json(saved: Path) -> None:
    one = forerun.load(saved, method="ngram")
    completion = one.generate([5, 6, 7, 5, 6], SHORT, logprobs=1)
    content = json.loads(json.dumps(completion.as_dict()))
    assert content["text"] == completion.text
    assert content["token_ids"] == list(completion.token_ids)
    assert content["stats"]["num_emitted_tokens"] == len(completion.token_ids)
    assert len(content["logprobs"]) == len(completion.token_ids)
    assert content["error"] is None
    assert content.keys() == {field.name for field in fields(completion)}


def test_a_policy_goes_by_name_or_is_made_already(saved: Path) -> None:
    assert forerun.load(saved, policy="adaptive").config.policy == "adaptive"
    made = make_policy("fixed", 2)
    assert isinstance(made, FixedPolicy)
    one = forerun.load(saved, drafter="ngram", policy=made)
    assert one.policy is made
    one.generate(PROMPT, SHORT)
    assert Engine(TARGET, NgramDrafter(), policy=made).policy is made
    with pytest.raises(UnknownNameError, match="Did you mean 'adaptive'"):
        forerun.load(saved, policy="adaptve")


@pytest.mark.parametrize(
    ("speculative", "options", "problem"),
    [
        (False, {"drafter": "ngram"}, "speculative is False"),
        (False, {"policy": "fixed"}, "speculative is False"),
        ({"method": "suffix"}, {"drafter": "ngram"}, "leave one of them out"),
        ({"method": "suffix"}, {"drafter": NgramDrafter()}, "leave one of them out"),
        ({"policy": "adaptive"}, {"policy": "fixed"}, "leave one of them out"),
        (True, {"drafter": NgramDrafter}, "is the class NgramDrafter itself"),
        (True, {"drafter": 7}, "drafter is 7, which has no propose"),
        (True, {"drafter": "Qwen/Qwen3-0.6B"}, "unknown method 'Qwen/Qwen3-0.6B'"),
        (True, {"policy": 7}, "policy is 7, which has no plan"),
        (True, {"tokenizer": "gpt2"}, "tokenizer is 'gpt2', which has no decode"),
        (True, {"dtyp": "fp32"}, "Did you mean 'dtype'"),
        (True, {"speculative_config": {}}, "Did you mean 'speculative'"),
        (True, {"torch_dtype": "fp32"}, "Did you mean 'dtype'"),
    ],
)
def test_what_contradicts_itself_is_refused(
    saved: Path, speculative: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        forerun.load(saved, speculative, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["drafter", "policy", "temperature", "sampling_defaults", "rules", "config", "anything"]
)
def test_setting_an_attribute_says_what_to_do(name: str) -> None:
    one = engine()
    with pytest.raises(ConfigError, match=f"{name} of an engine cannot be set; make another"):
        setattr(one, name, None)
    assert one.generate([1, 2], GREEDY).token_ids


def test_values_say_how_to_change_them() -> None:
    for value, name in (
        (forerun.SamplingParams(), "temperature"),
        (forerun.SpeculativeConfig(), "method"),
    ):
        with pytest.raises(ConfigError, match=rf"dataclasses\.replace\(\.\.\., {name}=0\)"):
            setattr(value, name, 0)
    assert dataclasses.replace(forerun.SamplingParams(), temperature=0).greedy


def test_short_representations(saved: Path) -> None:
    one = forerun.load(saved, backend="torch", dtype="fp32", drafter="ngram")
    assert repr(one.target) == f"Transformer({str(saved)!r}, precision='fp32')"
    assert repr(one) == f"Engine({str(saved)!r}, drafter='ngram', max_batch_size=1, max_context=64)"
    assert repr(one.drafter) == "NgramDrafter()"
    assert repr(forerun.SamplingParams()) == "SamplingParams()"
    assert repr(forerun.SamplingParams(temperature=0, stop=("a",))) == (
        "SamplingParams(temperature=0.0, stop=('a',))"
    )
    assert repr(forerun.SpeculativeConfig(method="ngram")) == "SpeculativeConfig(method='ngram')"
    adapted = forerun.load(tiny_model("opt"), False).target
    assert repr(adapted) == "HFModel('OPTForCausalLM', precision='fp32')"
    assert "bf16" in repr(load_model(saved, dtype="bf16", backend="torch"))


def test_short_representations_of_results() -> None:
    one = Engine(TARGET, tokenizer=Letters())
    stream = one.stream([1], GREEDY)
    assert repr(stream) == "Stream(request_id=0, num_tokens=0, finish_reason=None)"
    first, *_, last = stream
    text, completion = stream.completion.text, stream.completion
    assert repr(first) == f"TokenEvent({text[0]!r}, token_id={first.token_id}, origin='plain')"
    assert repr(last).endswith("origin='plain', finish_reason='length')")
    assert repr(completion) == f"Completion({text!r}, num_tokens=30, finish_reason='length')"
    assert repr(stream) == "Stream(request_id=0, num_tokens=30, finish_reason='length')"
    long = dataclasses.replace(completion, text="long\n" * 1000)
    assert len(repr(long)) < 160
    assert "\n" not in repr(long)
