"""`forerun train eagle3`."""

from forerun.cli.train_head import command_for

command = command_for("eagle3")
