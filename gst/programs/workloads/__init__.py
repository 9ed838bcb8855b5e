"""Bundled training steps in plain PyTorch: small, readable, scaled by keyword arguments."""

from __future__ import annotations

from collections.abc import Callable

from gst.programs.step import TrainingStep
from gst.programs.workloads.attention import gpt, moe, transformer_xl
from gst.programs.workloads.convolution import inception, wavenet
from gst.programs.workloads.recurrent import gnmt, rnnlm

WORKLOADS: dict[str, Callable[..., TrainingStep]] = {
    "rnnlm": rnnlm, "gnmt": gnmt, "transformer_xl": transformer_xl, "wavenet": wavenet, "inception": inception,
    "gpt": gpt, "moe": moe,
}  # fmt: skip

__all__ = ["WORKLOADS", "gnmt", "gpt", "inception", "moe", "rnnlm", "transformer_xl", "wavenet"]
