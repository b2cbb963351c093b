"""`forerun train`: the group of commands that make drafters for a model, and data for them."""

from __future__ import annotations

from forerun.cli.groups import LazyGroup

COMMANDS = {
    "data": ("forerun.cli.train_data", "Have a model write and answer prompts to train on."),
    "draft": ("forerun.cli.train_drafter:draft", "Train a draft model: a small one, distilled."),
    "dspark": ("forerun.cli.train_drafter:dspark", "Train a DSpark head: a block a pass."),
    "eagle3": ("forerun.cli.train_drafter:eagle3", "Train an EAGLE-3 head: a token a pass."),
    "layer_skip": (
        "forerun.cli.train_drafter:layer_skip",
        "Train an adapter behind an early exit: a layer that reads the whole text.",
    ),
    "medusa": (
        "forerun.cli.train_drafter:medusa",
        "Train Medusa's heads: all tokens from one state.",
    ),
}

command = LazyGroup(
    "train",
    COMMANDS,
    help="Train drafters for a model, from the model's own answers.",
)
