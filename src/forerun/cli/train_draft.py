"""`forerun train draft`."""

from forerun.cli.train_head import command_for

command = command_for("draft")
