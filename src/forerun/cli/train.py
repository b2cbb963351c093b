"""`forerun train`: the group of commands that make drafters for a model, and data for them."""

from __future__ import annotations

from forerun.cli.groups import LazyGroup

COMMANDS = {
    "data": ("forerun.cli.train_data", "Have a model write and answer prompts to train on."),
}

command = LazyGroup(
    "train",
    COMMANDS,
    help="Train drafters for a model, from the model's own answers.",
)
