"""Kinds of devices, by the names that PyTorch gives them."""

ACCELERATOR = "cuda"
"""For which steps are captured on a machine that has none; simulated GPUs are of this kind too."""

KINDS = ("cpu", ACCELERATOR)
"""Of devices for which steps are captured."""
