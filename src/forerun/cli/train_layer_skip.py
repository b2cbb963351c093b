"""`forerun train layer_skip`."""

from forerun.cli.train_head import command_for

command = command_for("layer_skip")
