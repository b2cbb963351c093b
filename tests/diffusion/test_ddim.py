"""DDIM in closed form is the scheduler of diffusers, and the prediction behind a step is found again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun.diffusion.ddim import Schedule
from forerun.errors import ConfigError
from tests.helpers import tiny_pipelines as tiny

PREDICTIONS = ["v_prediction", "epsilon"]


def made(prediction: str, **changed: Any) -> tuple[Any, Schedule]:
    scheduler = tiny.scheduler(prediction)
    scheduler = type(scheduler).from_config({**scheduler.config, **changed})
    return scheduler, Schedule.of(scheduler)


@pytest.mark.parametrize("spacing", ["trailing", "leading"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_steps_are_those_of_the_scheduler(prediction: str, spacing: str) -> None:
    scheduler, schedule = made(prediction, timestep_spacing=spacing, steps_offset=1)
    scheduler.set_timesteps(8)
    times = schedule.timesteps(8)
    assert torch.equal(times.flip(0), scheduler.timesteps)
    torch.manual_seed(0)
    for time in scheduler.timesteps[prediction == "epsilon" :]:
        noisy, predicted = torch.randn(2, 3, 4, 8, 8)
        expected = scheduler.step(predicted, time, noisy).prev_sample
        starts = time.expand(3)
        found = schedule.step(noisy, predicted, starts, starts - schedule.stride(8))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_prediction_behind_a_step_is_found_again(prediction: str) -> None:
    _, schedule = made(prediction)
    times = schedule.timesteps(8)[: 8 - (prediction == "epsilon")]
    ends = times - schedule.stride(8)
    torch.manual_seed(0)
    noisy, predicted = torch.randn(2, len(times), 4, 8, 8)
    landed = schedule.step(noisy, predicted, times, ends)
    found = schedule.prediction_to_land(noisy, landed, times, ends)
    torch.testing.assert_close(found, predicted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_noise_and_clean_sample_are_what_was_mixed(prediction: str) -> None:
    _, schedule = made(prediction)
    times = schedule.timesteps(8)[:6]
    torch.manual_seed(0)
    clean, noise = torch.randn(2, 6, 4, 8, 8)
    noisy = schedule.noisy(clean, noise, times)
    alpha, sigma = schedule.levels(times)
    predicted = noise if prediction == "epsilon" else alpha * noise - sigma * clean
    torch.testing.assert_close(schedule.clean(noisy, predicted, times), clean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(schedule.noise(noisy, predicted, times), noise, atol=1e-4, rtol=1e-4)


def test_weights_make_errors_of_predictions_errors_of_the_clean_sample() -> None:
    for prediction in PREDICTIONS:
        _, schedule = made(prediction)
        times = schedule.timesteps(8)[:7]
        alpha, sigma = (level.flatten() for level in schedule.levels(times))
        # An error of 1 in the prediction is one of sigma, or sigma / alpha, in the clean sample.
        share = sigma if prediction == "v_prediction" else sigma / alpha
        truncated = (alpha / sigma).square().clamp_min(1.0)
        torch.testing.assert_close(schedule.weights(times), truncated * share.square())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prediction_type": "sample"}, "prediction_type"),
        ({"timestep_spacing": "linspace"}, "timestep_spacing"),
        ({"clip_sample": True}, "clip_sample"),
    ],
)
def test_schedulers_without_a_closed_form_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made("v_prediction", **changed)


def test_other_schedulers_and_uneven_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="DDIMScheduler"):
        Schedule.of(tiny.unguided_pipeline().scheduler)
    with pytest.raises(ConfigError, match="1, 2, 4, 8"):
        made("epsilon")[1].check_steps(12)
