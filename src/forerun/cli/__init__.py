"""The command line. Its modules load torch only inside the commands that run a model."""
