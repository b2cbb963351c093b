"""`forerun train eagle3`."""

from forerun.cli.train_drafter import command_for

command = command_for("eagle3")
