"""Digits are drawn anew, alike for a seed; a clip moves, and every n-th frame of one is a clip."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, nn

from benchmarks.diffusion_video import brightness_centres
from recipes.diffusion import clip_loss, velocity_loss
from recipes.diffusion_models import drop_labels, embed_labels, make_image_unet, make_scheduler
from recipes.digits import bounce, draw_clips, draw_images, load_digits


def test_images_follow_from_the_seed() -> None:
    drawn = [draw_images(load_digits(), 8, Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])
    images = drawn[0][0]
    assert images.shape == (8, 1, 32, 32)
    assert bool((images.amax((1, 2, 3)) > 0.5).all()), "each shows a digit"
    assert bool((images[..., 0].amax((1, 2)) < -0.5).all()), "inside the canvas"


def test_held_out_digits_are_not_trained_on() -> None:
    train, held_out = load_digits(), load_digits(held_out=True)
    assert len(train.labels) + len(held_out.labels) == 1797
    assert len(held_out.labels) == 300


def test_a_point_is_thrown_back_by_the_walls() -> None:
    position = torch.linspace(-0.5, 3.5, 401)
    place = bounce(position)
    assert float(place.abs().max()) <= 0.5 + 1e-6
    torch.testing.assert_close(place[:100], position[:100])
    # It never jumps: it moves as fast as without walls.
    torch.testing.assert_close(place.diff().abs(), position.diff(), atol=1e-4, rtol=1e-3)


def test_clips_move_straight_on_and_show_one_digit() -> None:
    clips, labels = draw_clips(load_digits(), 32, 16, Generator().manual_seed(0))
    assert clips.shape == (32, 16, 1, 32, 32)
    assert labels.shape == (32,)
    centres = brightness_centres(clips / 2 + 0.5)
    speeds = centres.diff(dim=1).norm(dim=-1).mean(1)
    assert float(speeds.max()) > 4 * float(speeds.min()), "speeds are mixed"
    assert float(centres.diff(dim=1).norm(dim=-1).max()) < 5.0, "no jumps"


def test_labels_are_dropped_in_their_share() -> None:
    labels = torch.arange(10_000) % 10
    dropped = drop_labels(labels, 0.15, Generator().manual_seed(0))
    assert 0.13 < float((dropped == -1).float().mean()) < 0.17
    assert torch.equal(dropped[dropped >= 0], labels[dropped >= 0])
    assert embed_labels(torch.tensor([-1, 3])).nonzero().tolist() == [[1, 0, 3]]


def test_a_perfect_prediction_has_no_loss() -> None:
    """The velocity that is asked for is the one from which the scheduler finds the clean sample."""
    scheduler = make_scheduler()
    latents, noise = torch.randn(2, 1, 4, 8, 8)
    scheduler.set_timesteps(64)
    for timestep in scheduler.timesteps[1:]:
        steps = timestep[None]
        noisy = scheduler.add_noise(latents, noise, steps)
        velocity = scheduler.get_velocity(latents, noise, steps)
        found = scheduler.step(velocity, timestep, noisy).pred_original_sample
        torch.testing.assert_close(found, latents, atol=1e-4, rtol=1e-4)


def test_losses_follow_from_the_generator() -> None:
    unet = make_image_unet()
    latents, labels = torch.randn(4, 4, 8, 8), torch.arange(4)
    losses = [
        velocity_loss(unet, latents, labels, Generator().manual_seed(seed)).item()
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_the_strides_of_training_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def loss(unet: nn.Module, clips: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append(clips)
        return clips.sum()

    monkeypatch.setattr("recipes.diffusion.velocity_loss", loss)
    frames = torch.arange(16.0).view(1, 16, 1, 1, 1).expand(5, 16, 4, 8, 8)
    for seed in range(40):
        clip_loss(frames, torch.zeros(5), nn.Identity(), Generator().manual_seed(seed))
    lengths = {clips.shape[2] for clips in seen}
    assert {16, 8} <= lengths <= {16, 8, 6, 5, 4, 3}
    for clips in seen:
        assert len(clips[0, 0, :, 0, 0].diff().unique()) == 1, "evenly spaced"
        assert 96 < clips.shape[0] * clips.shape[2] <= 128, "about as many frames each time"
