"""Comparison of an accelerator with the host: outputs of a program, with convolutions in full precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gst.lowering.calls import eager
from gst.programs import Program, differ_beyond_rounding


def differs_from_host(program: Program, device: torch.device) -> str | None:
    """Compare outputs of a program, run operation by operation, on a device and on the CPU.

    Returns:
        The first difference beyond rounding; None if they agree. Convolutions are exact.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
        >>> differs_from_host(program, torch.device("cpu")) is None
        True
    """
    with exact_convolutions():
        got = eager(program, device=device)
    return differ_beyond_rounding(got, eager(program), partial(eager, program), program.inputs)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Let convolutions of cuDNN multiply in fp32, as the CPU does, also those that are recorded inside.

    Examples:
        >>> with exact_convolutions():
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
