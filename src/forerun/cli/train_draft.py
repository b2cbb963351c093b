"""`forerun train draft`."""

from forerun.cli.train_drafter import command_for

command = command_for("draft")
