"""Calls of a model or a step that lies on an accelerator: its inputs are brought there, and it runs in one way.

A call is given inputs that lie anywhere, and returns outputs that no later call overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gst.execution.on_accelerator import module_on
from gst.lowering.calls import laid_out
from gst.programs import Program
from gst.whole_model.guards import Guard
from gst.whole_model.whole import MOST_KEPT, Function

if TYPE_CHECKING:
    from gst.whole_model.device_copy import DeviceCopy


class OnInputs:
    """Runs a function of inputs on a device.

    Args:
        model: whose inputs they are.
        function: of inputs on its device.

    Attributes:
        examples: see `gst.whole_model.whole.OnAccelerator`.
    """

    def __init__(self, model: DeviceCopy, function: Function) -> None:
        self._model, self._function = model, function
        self.examples = model.given_examples

    def __call__(self, *inputs: Any) -> Any:
        with self._model.turn():
            return self._function(*to_device(inputs, self._model.device))


class OnStaticInputs:
    """Runs a function on memory that stays, where graphs read their inputs. Outputs are copied: the next run overwrites
    them.

    Args:
        model, function: see `OnInputs`.

    Attributes:
        examples: see `gst.whole_model.whole.OnAccelerator`.
        inputs: in that memory.
        again: runs the function on them.
    """

    def __init__(self, model: DeviceCopy, function: Function) -> None:
        self._model, self.inputs = model, model.static_inputs()
        self.examples = model.given_examples
        self.again: Callable[[], Any] = partial(function, *self.inputs)

    def __call__(self, *inputs: Any) -> Any:
        model = self._model
        with model.turn():
            if model.lies_elsewhere():
                return model.eager(*to_device(inputs, model.device))
            model.hold(inputs)
            with torch.no_grad():
                return pytree.tree_map_only(Tensor, Tensor.clone, self.again())


def to_device(inputs: Sequence[Any], device: torch.device) -> tuple[Any, ...]:
    """The inputs with their tensors on a device, without gradients."""
    result: tuple[Any, ...] = pytree.tree_map_only(Tensor, lambda each: each.detach().to(device), tuple(inputs))
    return result


def compiled_step(
    program: Program | None, inputs: Sequence[Any], compiled_by: Callable[[nn.Module], Function], device: torch.device
) -> Function:
    """What runs a step on a device as compiled whole.

    Args:
        program: the step as captured.
        inputs: that it is called with, in their structure.
        compiled_by: compiles a module.
    """
    assert program is not None, "a step is compiled as captured"
    module, read = compiled_by(module_on(program, device)), Guard(None, inputs, weights=False).leaves

    def run(*values: Any) -> Any:
        with torch.no_grad(), all_kept():
            tensors = [laid_out(each, like) for each, like in zip(read(values), program.inputs, strict=True)]
            return program.unflatten(list(module(*tensors)))

    return run


@contextmanager
def all_kept() -> Iterator[None]:
    """Within it code of every way of every model of a class is kept, also of what is compiled in a call, as in another
    mode of gradients. Dynamo would give up after eight and run a model as written. Its `config.patch` takes longer."""
    config = torch._dynamo.config
    before, config.recompile_limit = config.recompile_limit, MOST_KEPT
    try:
        yield
    finally:
        config.recompile_limit = before
