"""What outputs of plans are compared with: those of the program on the accelerator that rounds as plans there do.

cuDNN rounds what convolutions multiply to TF32, 11 bits of 24, unless it is told not to. So outputs on a GPU are off
those on the CPU by more than rounding of fp32, and right nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.lowering.calls import HOST, eager
from gst.machine.devices import Device
from gst.programs import Program, differ_beyond_rounding, outputs_differ
from gst.programs.program import distances

BETWEEN = 2.0  # times the distance between the host and the accelerator: a plan on both may be off by it


@dataclass(frozen=True)
class Reference:
    """Outputs of a program.

    Args:
        program: whose they are.
        want: flat, on the host.
        again: outputs for other inputs, computed alike; None where plans round as these do.
        least: how far each output of a plan may be off in any case; empty where no plan rounds otherwise.
    """

    program: Program
    want: Sequence[Any]
    again: Callable[[Sequence[Tensor]], list[Any]] | None = None
    least: Sequence[float] = ()

    def difference(self, got: Sequence[Any]) -> str | None:
        """What differs first between flat outputs and these, where plans round otherwise by more than that; None if
        they agree."""
        if self.again is None:
            return outputs_differ(got, self.want)
        return differ_beyond_rounding(got, self.want, self.again, self.program.inputs, self.least)


def reference(program: Program, devices: Sequence[Device]) -> Reference:
    """Outputs of all operations in order on the first accelerator among some devices; on the host where there is none,
    or where it cannot run them all."""

    def run(inputs: Sequence[Tensor] | None, device: torch.device) -> list[Any]:
        return pytree.tree_map_only(Tensor, Tensor.cpu, eager(program, inputs, device))

    home, on_host = next((each.torch_device for each in devices if each.is_accelerator), HOST), run(None, HOST)
    if home != HOST:
        try:
            want = run(None, home)
        except RuntimeError:  # an operation, or memory, that it lacks
            return Reference(program, on_host, partial(run, device=HOST))
        least = [BETWEEN * each for each in distances(want, on_host)]
        return Reference(program, want, partial(run, device=home), least)
    return Reference(program, on_host)


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
