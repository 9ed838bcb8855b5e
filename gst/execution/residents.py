"""Memory of a program's inputs and constants on devices, which all recorded plans of the program read.

Programs are functional, so no graph writes there: plans that run one after the other share the memory of the weights.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gst.lowering.calls import copied, fixed_values, is_expanded, laid_out, unexpanded
from gst.lowering.stream_program import StreamProgram
from gst.programs import Operation, Program

UNDECLARED = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}
"""Operators that write into running statistics while they train, without a declaration in their schemas."""


class Resident:
    """Memory of one input or constant on one device, which begins with the value that the program has for it.

    Args:
        example: that value.
        device: where the memory is.
        is_input: True if other values may be written there; a constant on its own device is not copied.
    """

    def __init__(self, example: Tensor, device: torch.device, is_input: bool) -> None:
        self._example, self._is_example = example.detach(), True
        self._source: _Source | None = None
        is_there = self._example.device == device and not is_input
        with torch.inference_mode(False):  # else it could be written to in that mode alone
            self.value = self._example if is_there else laid_out(copied(self._example, device), self._example)

    def hold(self, value: Tensor, is_steady: bool) -> None:
        """Copy a value there. A steady one is copied only if it is another tensor than the last, or was written to
        since."""
        source = _Source(value) if is_steady else None
        if source is None or not source.is_as(self._source):
            self._copy(value.detach())
        self._source, self._is_example = source, False

    def hold_example(self) -> None:
        """Copy the program's own value there, unless it is there."""
        if not self._is_example:
            self._copy(self._example)
        self._source, self._is_example = None, True

    def _copy(self, value: Tensor) -> None:
        if is_expanded(self.value):
            if value.stride() != self._example.stride():
                raise ValueError(f"an input has strides {value.stride()}, not {self._example.stride()}: it is expanded")
            unexpanded(self.value).copy_(unexpanded(value))
        else:
            self.value.copy_(value)

    def forget(self) -> None:
        """Let the next value be copied there in any case: the memory was written to."""
        self._source, self._is_example = None, False


class Residents:
    """Memory of the inputs and constants of one program, by node and device. Each lives as long as a caller holds it.

    Attributes:
        writes: True if an operation may write into an input: then earlier copies are unreliable.
        num_fills: runs before which other values than the program's own were copied there.
    """

    def __init__(self, program: Program) -> None:
        self.writes = any(map(_writes, program.operations))
        self.num_fills = 0
        self._examples, self._num_inputs = fixed_values(program), len(program.inputs)
        self._all: WeakValueDictionary[tuple[int, torch.device], Resident] = WeakValueDictionary()

    def at(self, node: int, device: torch.device) -> Resident:
        """Return the resident of an input or constant on a device."""
        resident = self._all.get((node, device))
        if resident is None:
            resident = Resident(self._examples[node], device, node < self._num_inputs)
            self._all[node, device] = resident
        return resident

    def of(self, streams: StreamProgram, devices: list[torch.device]) -> dict[tuple[int, int], Resident]:
        """Return the residents of a stream program when a run begins, by node and memory."""
        return {(node, memory): self.at(node, devices[memory]) for node, memory in streams.residents.T.tolist()}


class _Source:
    """An input at the time it was copied. It is held, so that no other tensor can lie in its memory."""

    def __init__(self, value: Tensor) -> None:
        self._value, self._version = value.detach(), None if value.is_inference() else value._version

    def is_as(self, other: _Source | None) -> bool:
        """True if it is the other one, and nothing was written to it in between."""
        return other is not None and self._version is not None and self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        value = self._value
        return value.data_ptr(), value.dtype, value.shape, value.stride(), value.device, self._version


def _writes(operation: Operation) -> bool:
    schema = getattr(operation.target, "_schema", None)
    if schema is None or schema.is_mutable or schema.name not in UNDECLARED:
        return schema is not None and bool(schema.is_mutable)
    arguments = dict(zip((each.name for each in schema.arguments), operation.args, strict=False)) | operation.kwargs
    return bool(arguments["training"]) and arguments["running_mean"] is not None
