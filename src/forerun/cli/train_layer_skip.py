"""`forerun train layer_skip`."""

from forerun.cli.train_drafter import command_for

command = command_for("layer_skip")
