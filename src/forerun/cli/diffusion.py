"""`forerun diffusion`: the group of commands for diffusion models."""

from __future__ import annotations

from forerun.cli.groups import LazyGroup

COMMANDS = {
    "bench": ("forerun.cli.diffusion_bench", "What each method costs and saves, and the roofline."),
    "distill": (
        "forerun.cli.diffusion_distill",
        "Halve a model's steps by training, again and again.",
    ),
    "prove": ("forerun.cli.diffusion_prove", "Prove that speculative sampling keeps the law."),
    "sample": (
        "forerun.cli.diffusion_sample",
        "Make images or clips, with fewer passes if you like.",
    ),
}

command = LazyGroup(
    "diffusion",
    COMMANDS,
    help="Diffusion models of diffusers with fewer network passes, one way of them exact.",
)
