"""Precision of convolutions: cuDNN rounds what it multiplies to TF32, 11 bits of 24, unless it is told not to.

So a program's outputs on a GPU are off those on the CPU by more than rounding of fp32, and right nevertheless. Ways to
run a program on an accelerator are compared with its operations one by one there (`eager`), and those,
once, with the CPU while convolutions are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gst.devices.execute.calls import eager
from gst.programs import Program, differ_beyond_rounding


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Within it convolutions of cuDNN multiply in fp32, as the CPU does; also those that are recorded in it.

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


def differs_from_host(program: Program, device: torch.device) -> str | None:
    """What differs first, by more than rounding, between the outputs of a program's operations one by one on a device,
    convolutions exact, and those on the CPU; None if they agree.

    Examples:
        >>> from gst.programs import capture_module
        >>> program = capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),))
        >>> differs_from_host(program, torch.device("cpu")) is None
        True
    """
    with exact_convolutions():
        got = eager(program, device=device)
    return differ_beyond_rounding(got, eager(program), partial(eager, program), program.inputs)
