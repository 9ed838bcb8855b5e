"""Bundled training steps in plain PyTorch: small, readable, scaled by keyword arguments."""

from __future__ import annotations

from collections.abc import Callable

from gst.programs.step import TrainingStep
from gst.programs.workloads.gnmt import gnmt
from gst.programs.workloads.gpt import gpt
from gst.programs.workloads.inception import inception
from gst.programs.workloads.inception_v3 import inception_v3
from gst.programs.workloads.moe import moe
from gst.programs.workloads.nasnet import nasnet
from gst.programs.workloads.rnnlm import rnnlm
from gst.programs.workloads.transformer_xl import transformer_xl
from gst.programs.workloads.wavenet import wavenet

WORKLOADS: dict[str, Callable[..., TrainingStep]] = {
    "rnnlm": rnnlm,
    "gnmt": gnmt,
    "transformer_xl": transformer_xl,
    "wavenet": wavenet,
    "inception": inception,
    "inception_v3": inception_v3,
    "nasnet": nasnet,
    "gpt": gpt,
    "moe": moe,
}

__all__ = [
    "WORKLOADS", "gnmt", "gpt", "inception", "inception_v3", "moe", "nasnet", "rnnlm", "transformer_xl", "wavenet",
]  # fmt: skip
