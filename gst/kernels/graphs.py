"""Graphs of AOTAutograd with their kernels on streams: forward and backward passes of `torch.compile(backend="gst")`.

Inductor's code runs until the addresses of parameters repeat. Then the kernels run in memory of their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import dlpack

from gst.kernels import inductor
from gst.kernels.inductor import NotUnderstoodError
from gst.kernels.program import KernelProgram, View
from gst.kernels.recording import recorded_calls
from gst.kernels.run import Run
from gst.kernels.streams import OnStreams
from gst.util.recording import is_here
from gst.util.untrusted import first_line

MOST_MOVES = 3  # calls, one after the other, in which an input lies elsewhere than before; then it is copied
log = logging.getLogger("gst")
Search = Callable[[KernelProgram, Sequence[Tensor]], OnStreams]
Record = Callable[[Run], Callable[[], list[Any]]]


def inner_compile(search: Search, record: Record | None = None) -> Callable[..., Any]:
    """Return a compiler of graphs, to be the `inner_compile` of Inductor's `compile_fx`.

    Args:
        search: finds the streams of a graph, such as `gst.kernels.streams.on_streams`.
        record: records a run on the same streams, where tensors lie elsewhere later; `Run.recorded` if None.
    """

    def compile_graph(graph: fx.GraphModule, examples: Sequence[Any], **options: Any) -> Any:
        meta = graph.graph.output_node().meta  # read before Inductor changes the graph
        visible = () if options.get("is_backward") else meta.get("user_visible_output_idxs", ())
        compiled = inductor.compiled_graph(graph, examples, options)
        if reason := inductor.unsupported():
            log.info("graphs run as Inductor compiled them: %s", reason)
        elif inductor.has_code(compiled):
            static = options.get("static_input_idxs", ())
            compiled.current_callable = GraphOnStreams(compiled, static, visible, search, record)
        return compiled

    return compile_graph


class GraphOnStreams:
    """Stands for Inductor's code of a graph, and runs its kernels on streams where that is safe.

    Inductor's code runs instead while tensors of the last call are in use, such as gradients that are accumulated or
    the activations of a pass whose backward is to come, and on other streams than the first. `static` inputs, such as
    parameters, are read where they lie; `visible` outputs, which a user may keep for longer, are cloned.

    Attributes:
        reason: why it always runs Inductor's code; empty if it does not.
        num_replayed: calls that ran on streams.
    """

    def __init__(
        self, compiled: Any, static: Iterable[int], visible: Collection[int], search: Search, record: Record | None
    ) -> None:
        self._compiled, self._whole = compiled, compiled.current_callable
        self._wanted, self._visible, self._search, self._record = frozenset(static), frozenset(visible), search, record
        self._program: KernelProgram | None = None
        self._result: OnStreams | None = None
        self._call: Callable[[], list[Any]] | None = None
        self._moves: dict[int, int] = {}
        self._turn = threading.Lock()
        self._is_warm = False
        self.reason, self.num_replayed = "", 0

    def __call__(self, args: list[Any]) -> Any:
        """Run the graph; `args` is emptied."""
        result = None
        if not self.reason and self._turn.acquire(blocking=False):
            try:
                result = self._on_streams(list(args))
            except Exception as error:  # any exception of a recording, a proof or a graph
                self.reason = first_line(error)
                log.info("a graph runs as Inductor compiled it: %s", self.reason)
                self._call = None
            finally:
                self._turn.release()
        if result is None:
            return self._whole(args)
        args.clear()
        return result

    def _on_streams(self, values: list[Any]) -> list[Any] | None:
        """Return the outputs; None if Inductor's code is to run."""
        if self._program is None:
            self._learn(values)
            return None
        if not self._lies_as_before(values) or self._is_in_use():
            return None
        if self._call is None:
            self._build(values)
        assert self._call is not None
        if self._stream is not None and torch.accelerator.current_stream() != self._stream:
            return None
        for number, place in self._copied:
            place.copy_(values[number], non_blocking=True)
        self.num_replayed += 1
        return self._returned(values, self._call())

    def _learn(self, values: Sequence[Any]) -> None:
        """Record the calls of the graph on copies of its inputs; on an accelerator its second call does that, as
        kernels tune themselves in the first."""
        if not all(isinstance(each, Tensor) for each in values):
            raise NotUnderstoodError("it has sizes that change")
        devices = {each.device for each in values if is_here(each.device)}
        if devices and not self._is_warm:
            self._is_warm = True
            return
        with torch.random.fork_rng(devices=[each.index for each in devices]), torch.no_grad():
            self._program = recorded_calls(self._compiled, [_copy(each) for each in values])
        self._static = self._wanted
        self._input_of = {view.storage: number for number, view in enumerate(self._program.inputs)}
        writes = {region.storage for kernel in self._program.kernels for region in kernel.writes}
        self._written = {number for number, view in enumerate(self._program.inputs) if view.storage in writes}
        self._before = [each.data_ptr() for each in values]

    def _lies_as_before(self, values: Sequence[Tensor]) -> bool:
        """True if all inputs that are not copied lie where they lay in the last call; a run that reads them elsewhere
        is dropped."""
        now = [each.data_ptr() for each in values]
        moved = [number for number in self._static if now[number] != self._before[number]]
        self._before = now
        if not moved:
            return True
        self._call = None
        self._moves = {number: self._moves.get(number, 0) + 1 for number in moved}
        often = {number for number, count in self._moves.items() if count > MOST_MOVES}
        self._static -= often - self._written
        return False

    def _build(self, values: Sequence[Tensor]) -> None:
        """Make a run that reads the inputs where they lie now. What it writes is undone."""
        assert self._program is not None
        if others := self._written - self._static:
            raise NotUnderstoodError(f"it writes to input {min(others)}, which may lie elsewhere in the next call")
        inputs = [_borrowed(each) if number in self._static else _copy(each) for number, each in enumerate(values)]
        before = {number: values[number].clone() for number in self._written}
        program, device = self._program.without_inputs(), self._program.device
        on = [device.index] if is_here(device) else []
        with torch.random.fork_rng(devices=on), torch.no_grad():
            if self._result is None:
                self._result = self._search(program, inputs)
                self._call = self._result.call
            else:
                record = self._record or (Run.recorded if on else lambda run: run)
                self._call = record(Run(program, self._result.run.streams, inputs))
            self._alias(self._call())
            for number, value in before.items():
                values[number].copy_(value)
        self._copied = [(number, each) for number, each in enumerate(inputs) if number not in self._static]
        self._stream = torch.accelerator.current_stream() if is_here(device) else None

    def _alias(self, outputs: Sequence[Any]) -> None:
        """Give outputs storages of their own in the same memory, whose users can be counted."""
        assert self._program is not None
        beforehand, storages = self._program.beforehand, dict[int, torch.UntypedStorage]()
        self._own: dict[int, Tensor] = {}
        for number, (view, value) in enumerate(zip(self._program.outputs, outputs, strict=True)):
            if isinstance(view, View) and view.storage not in beforehand and value.numel():
                storage = value.untyped_storage()
                flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
                address = storage.data_ptr()
                if address not in storages:
                    storages[address] = dlpack.from_dlpack(dlpack.to_dlpack(flat)).untyped_storage()
                self._own[number] = View.of(value, 0).on(storages[address], value.device)
        self._users = [(each, inductor.num_users(each)) for each in storages.values()]

    def _is_in_use(self) -> bool:
        """True if a tensor that an earlier call returned is still there."""
        if self._call is None:
            return False
        return any(inductor.num_users(each) > idle for each, idle in self._users)

    def _returned(self, values: Sequence[Tensor], outputs: Sequence[Any]) -> list[Any]:
        assert self._program is not None
        result = []
        for number, (view, value) in enumerate(zip(self._program.outputs, outputs, strict=True)):
            own = self._own.get(number)
            if own is not None and own.data_ptr() == value.data_ptr():
                result.append(own.clone() if number in self._visible else own.detach())
            elif isinstance(view, View) and (of := self._input_of.get(view.storage)) is not None:
                result.append(_of_input(view, self._program.inputs[of], values[of]))
            else:
                result.append(value)
        return result


def _of_input(view: View, of: View, value: Tensor) -> Tensor:
    """Return an input, or a view of it, that a graph returns."""
    if view == of:
        return value
    start = (int(value.storage_offset()) - of.offset) * value.itemsize + view.offset * view.dtype.itemsize
    return view._replace(offset=start // view.dtype.itemsize).on(value.untyped_storage(), value.device)


def _borrowed(value: Tensor) -> Tensor:
    """Return a tensor in the memory of another, which does not keep it: it is used only while the other is there."""
    _, start, stop = View.of(value, 0).region
    storage = inductor.borrowed_storage(value.data_ptr(), value.device, stop - start)
    return View.of(value, 0)._replace(offset=0).on(storage, value.device)


def _copy(value: Tensor) -> Tensor:
    """Copy a tensor with its strides; elements that share memory do so in the copy."""
    _, start, stop = View.of(value, 0).region
    flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())[start:stop].clone()
    return View.of(value, 0)._replace(offset=0).on(flat.untyped_storage(), value.device)
