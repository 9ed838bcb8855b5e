"""Runs of a kernel program: one call after the other, or recorded as one graph.

All buffers lie in one piece of memory (`Layout`), and all arguments of generated kernels are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gst.execution.costs import Graphs, call_us, graph_maker, span_us, timing_on
from gst.execution.lanes import issue_order, synchronise
from gst.kernels.lower import Layout, check, layout, run_steps, stream_program
from gst.kernels.program import KernelProgram, View, filled, views_in
from gst.lowering.happens_before import happens_before
from gst.lowering.stream_program import RECORD, RUN, WAIT, StreamProgram
from gst.util.recording import WARM_RUNS, Graph, is_here, new_graph, no_garbage, recorded


class Run:
    """A kernel program under a plan, with memory of its own.

    Args:
        program: the calls.
        streams: the plan, lowered; all calls on one stream if None.
        given: memory of the flat inputs, read and written in place; the recorded inputs if None. Their layout has to be
            that of the recorded ones.

    Attributes:
        inputs: tensors where the inputs are read.

    Raises:
        RaceError: the plan is not proven.
        ValueError: a given input has another layout than the recorded one.
    """

    def __init__(
        self, program: KernelProgram, streams: StreamProgram | None = None, given: Sequence[Tensor] | None = None
    ) -> None:
        self.program = program
        self.streams = streams or stream_program(program, np.zeros(program.num_kernels, np.int64))
        self.places: Layout = layout(program, self.streams)
        check(program, self.streams, self.places)
        self._memory = torch.empty(self.places.size, dtype=torch.uint8, device=program.device).untyped_storage()
        self._given = {storage: (value, 0) for storage, value in program.given.items()}
        for view, tensor in zip(program.inputs, given or (), strict=given is not None):
            if not view.is_like(tensor):
                raise ValueError(
                    f"an input is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}; "
                    f"the step was recorded with {view.dtype} {view.shape} and {view.stride}"
                )
            start = (tensor.storage_offset() - view.offset) * tensor.itemsize
            self._given[view.storage] = tensor.untyped_storage(), int(start)
        self._made: dict[int, Tensor] = {}
        self.inputs = [self._tensor(view) for view in program.inputs]
        self._calls = [self._bound(call) for call in range(program.num_kernels)]
        steps = issue_order(self.streams)
        self._in_order = [self._calls[call] for call in self.streams.argument[steps[self.streams.kind[steps] == RUN]]]
        is_fixed = program.made_by_calls.isdisjoint(program.results)
        self._outputs = self.outputs() if is_fixed else []

    def outputs(self) -> list[Any]:
        """Return the flat outputs, in memory that the next run overwrites."""
        return filled(list(self.program.outputs), self._tensor)

    def __call__(self) -> list[Any]:
        """Run the calls one after the other on the current stream, and return the outputs."""
        with torch.no_grad():
            for call in self._in_order:
                call()
        return self._outputs or self.outputs()

    def issue(self, lanes: Sequence[Stream]) -> None:
        """Launch all calls on streams, which begin after the first stream and end before it continues.

        Memory that an operator allocates is released once its own stream has waited for all who read it, so that the
        allocator of that stream may use it again.
        """
        streams, first = self.streams, lanes[0]
        fork = first.record_event()
        for lane in lanes[1:]:
            lane.wait_event(fork)
        events: dict[int, Any] = {}
        releases = self._releases()
        kinds, arguments, of_step = streams.kind.tolist(), streams.argument.tolist(), streams.lane_of_step.tolist()
        with torch.no_grad():
            for step in issue_order(streams).tolist():
                lane = lanes[of_step[step]]
                if kinds[step] == RUN:
                    for storage in releases.get(step, ()):
                        self._made.pop(storage, None)
                    with lane if isinstance(lane, torch.Stream) else nullcontext():
                        self._calls[arguments[step]]()
                elif kinds[step] == RECORD:
                    events[arguments[step]] = lane.record_event()
                elif kinds[step] == WAIT:
                    lane.wait_event(events[arguments[step]])
        for lane in lanes[1:]:
            first.wait_event(lane.record_event())

    def recorded(
        self, make: Callable[[torch.device, Any], Graph] = new_graph,
        stream: Callable[[torch.device], Stream] = torch.Stream,
    ) -> Callable[[], list[Any]]:  # fmt: skip
        """Record the streams as one graph of the accelerator, and return a function that replays it.

        Raises:
            RuntimeError: an operator does what a graph cannot.
        """
        device = self.program.device
        lanes = [stream(device) for _ in self.streams.lanes]
        for _ in range(WARM_RUNS):  # libraries choose their kernels
            self()
        self._made.clear()
        graph = make(device, None)
        synchronise([device])
        with no_garbage(), lanes[0] if isinstance(lanes[0], torch.Stream) else nullcontext(), recorded(graph):
            self.issue(lanes)
        synchronise([device])
        outputs = self.outputs()

        def replay() -> list[Any]:
            graph.replay()
            return outputs

        return replay

    def _bound(self, number: int) -> Callable[[], None]:
        """Return a function without arguments that makes one call."""
        kernel, own = self.program.kernels[number], self.program.made_by_calls
        call, makes = kernel.call, kernel.makes
        args, kwargs = filled(
            (kernel.args, kernel.kwargs), lambda view: view if view.storage in own else self._tensor(view)
        )
        is_fixed = not views_in((args, kwargs))
        fresh: list[int] = []  # tensors of the result that no argument holds, known from the first call

        def anew() -> None:
            values = (args, kwargs) if is_fixed else filled((args, kwargs), self._tensor)
            result = call(*values[0], **values[1])
            if makes:
                made = _tensors(result)
                if not fresh:
                    given = {each.untyped_storage().data_ptr() for each in _tensors(values)}
                    fresh[:] = [n for n, each in enumerate(made) if each.untyped_storage().data_ptr() not in given]
                self._made.update(zip(makes, (made[number] for number in fresh), strict=True))

        return partial(call, *args, **kwargs) if is_fixed and not makes else anew

    def _tensor(self, view: View) -> Tensor:
        if (made := self._made.get(view.storage)) is not None:
            return view.of_storage_of(made)
        if (given := self._given.get(view.storage)) is not None:
            return view.on(given[0], self.program.device, given[1])
        return view.on(self._memory, self.program.device, int(self.places.start[view.storage]))

    def _releases(self) -> dict[int, list[int]]:
        """Return for steps the storages, allocated by operators, whose stream knows there that nobody reads them."""
        program, clocks = self.program, happens_before(self.streams)
        at = run_steps(self.streams)
        steps = np.sort(at)
        users: dict[int, list[int]] = {storage: [] for storage in program.made_by_calls - program.results}
        for call, kernel in enumerate(program.kernels):
            for region in (*kernel.reads, *kernel.writes):
                if region.storage in users:
                    users[region.storage].append(int(at[call]))
        maker = {storage: int(at[call]) for call, kernel in enumerate(program.kernels) for storage in kernel.makes}
        result: dict[int, list[int]] = {}
        for storage, used in users.items():
            own = steps[(clocks.lane[steps] == clocks.lane[maker[storage]]) & (steps > maker[storage])]
            before = np.stack([clocks.before(np.full(len(own), each), own) for each in used]).all(0)
            if before.any():
                result.setdefault(int(own[np.argmax(before)]), []).append(storage)
        return result


class Stream(Protocol):
    """Stream of an accelerator."""

    def record_event(self) -> Any: ...

    def wait_event(self, event: Any) -> Any: ...


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]


def kernel_times_us(run: Run, repetitions: int = 5) -> np.ndarray:
    """Return the least microseconds of each call alone, in runs one after the other; those of one signature share them.

    On a CPU a clock times the calls; on an accelerator events around a graph of each call do
    (`gst.execution.costs`).
    """
    program, device = run.program, run.program.device
    least: dict[Any, float] = {}
    times = np.full(program.num_kernels, np.inf)
    if is_here(device):
        run()
        made = dict(run._made)
        maker = graph_maker(device)
        with timing_on(device):
            graphs = None if maker is None else Graphs(device, maker)
            for number, kernel in enumerate(program.kernels):
                if kernel.signature not in least:
                    least[kernel.signature] = call_us(run._calls[number], device, repetitions, 10, graphs)
                    run._made.update(made)  # those of the recording go with its graph
                times[number] = least[kernel.signature]
        return times
    with torch.no_grad():
        for _ in range(repetitions + 1):
            now = [span_us(call, device) for call in run._calls]
            np.minimum(times, now, out=times)
    for kernel, time in zip(program.kernels, times.tolist(), strict=True):
        least[kernel.signature] = min(least.get(kernel.signature, np.inf), time)
    return np.array([least[kernel.signature] for kernel in program.kernels])
