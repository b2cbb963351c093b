"""Shared by all tests."""

import torch

# Toy models are faster on one thread, and results do not depend on the machine's load.
torch.set_num_threads(1)
