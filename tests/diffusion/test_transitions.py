"""The tables of steps are the schedulers' own steps."""

from __future__ import annotations

import inspect
import sys
from typing import Any
from unittest.mock import patch

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
)

from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError

SCHEDULERS: list[tuple[Any, float]] = [
    (DDPMScheduler(), 0.0),
    (DDPMScheduler(prediction_type="v_prediction", clip_sample=False), 0.0),
    (DDPMScheduler(variance_type="fixed_large", timestep_spacing="trailing"), 0.0),
    (DDPMScheduler(variance_type="fixed_small_log", prediction_type="sample"), 0.0),
    (DDIMScheduler(), 1.0),
    (DDIMScheduler(prediction_type="v_prediction", clip_sample=False), 0.4),
    (DDIMScheduler(set_alpha_to_one=False, timestep_spacing="trailing"), 0.7),
    (DDIMScheduler(prediction_type="sample", beta_schedule="squaredcos_cap_v2"), 0.7),
    (DDIMScheduler(clip_sample=False, steps_offset=1), 0.0),
    (
        DDIMScheduler(
            prediction_type="v_prediction", clip_sample=False, timestep_spacing="trailing"
        ),
        0.0,
    ),
    (EulerAncestralDiscreteScheduler(), 0.0),
    (EulerAncestralDiscreteScheduler(prediction_type="v_prediction"), 0.0),
]


def made(scheduler: Any, steps: int, eta: float) -> Transitions:
    if isinstance(scheduler, DDIMScheduler) and not eta:
        return Transitions.deterministic(scheduler, steps)
    return Transitions.of(scheduler, steps, eta)


def own_step(scheduler: Any, index: int, sample: Any, output: Any, eta: float, noise: Any) -> Any:
    """The scheduler's step, with this noise."""
    timestep = scheduler.timesteps[index]
    scheduler._step_index = index
    scheduler.is_scale_input_called = True
    options = {"eta": eta} if "eta" in inspect.signature(scheduler.step).parameters else {}
    module = sys.modules[type(scheduler).__module__]
    with patch.object(module, "randn_tensor", lambda *_, **__: noise):
        return scheduler.step(output, timestep, sample, **options).prev_sample


@pytest.mark.parametrize(("scheduler", "eta"), SCHEDULERS)
@pytest.mark.parametrize("steps", [1, 7, 50])
def test_steps_are_those_of_the_scheduler(scheduler: Any, eta: float, steps: int) -> None:
    transitions = made(scheduler, steps, eta)
    scheduler.set_timesteps(steps)
    assert len(transitions) == len(scheduler.timesteps) == steps
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(steps, 3, 4, generator=generator) * transitions.start
    outputs = torch.randn(steps, 3, 4, generator=generator)
    at = torch.arange(steps)
    means = transitions.mean(at, samples.double(), outputs.double())
    inputs = transitions.scaled(at, samples.double())
    for index in range(steps):
        arguments = (index, samples[index : index + 1], outputs[index : index + 1], eta)
        plain = own_step(scheduler, *arguments, torch.zeros(1, 3, 4))
        noisy = own_step(scheduler, *arguments, torch.ones(1, 3, 4))
        size = float(means[index].abs().max()) + 1.0
        torch.testing.assert_close(
            means[index : index + 1].float(), plain, atol=2e-5 * size, rtol=1e-4
        )
        spread = float((noisy - plain).mean())
        assert spread == pytest.approx(float(transitions.std[index]), abs=2e-5 * size, rel=1e-4)
        scheduler._step_index = index
        scaled = scheduler.scale_model_input(samples[index], scheduler.timesteps[index])
        torch.testing.assert_close(inputs[index].float(), scaled, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("scheduler", "eta"), SCHEDULERS)
def test_an_output_is_found_from_its_clean_sample_and_from_its_mean(
    scheduler: Any, eta: float
) -> None:
    transitions = made(scheduler, 9, eta)
    at = torch.arange(9)
    samples, outputs = torch.randn(2, 9, 5, dtype=torch.float64).unbind()
    clean = transitions.clean(at, samples, outputs)
    torch.testing.assert_close(transitions.output_for(at, samples, clean), outputs)
    if transitions.clip is None:
        means = transitions.mean(at, samples, outputs)
        torch.testing.assert_close(transitions.output_to(at, samples, means), outputs)


def test_the_scheduler_is_left_as_it_is() -> None:
    scheduler = EulerAncestralDiscreteScheduler()
    before = scheduler.timesteps.clone()
    Transitions.of(scheduler, 5)
    assert torch.equal(scheduler.timesteps, before)
    assert scheduler.step_index is None


@pytest.mark.parametrize("scheduler", [EulerDiscreteScheduler(), DPMSolverMultistepScheduler()])
def test_other_schedulers_are_refused_by_name(scheduler: Any) -> None:
    with pytest.raises(UnknownNameError, match=type(scheduler).__name__):
        Transitions.of(scheduler, 5)


def test_samplers_without_noise_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"deterministic.*nothing to couple"):
        Transitions.of(DDIMScheduler(), 5, eta=0.0)
    with pytest.raises(ConfigError, match=r"eta is -1"):
        Transitions.of(DDIMScheduler(), 5, eta=-1.0)
    with pytest.raises(ConfigError, match="2000 steps"):
        Transitions.of(DDPMScheduler(), 2000)


@pytest.mark.parametrize(
    "change",
    [{"variance_type": "learned_range"}, {"thresholding": True}, {"variance_type": "learned"}],
)
def test_what_the_network_decides_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        Transitions.of(DDPMScheduler(**change), 5)
