"""Operations of a program as they run: calls on a list of values, storages of the values, and costs on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from gst.lowering.plan import ExecutionError, Rows, Timeline, rows
from gst.machine.devices import Device, core_use, memories_of
from gst.programs import Operation, Program, Reference, as_module
from gst.programs.operation import references


@dataclass(frozen=True, eq=False)
class Storages:
    """Pieces of memory that a run allocates; several values may lie in one (a view and its base).

    Args:
        num_bytes: of each storage.
        made_by: node that allocates it.
        held: pairs (storage, node): the value of the node keeps the storage alive.
    """

    num_bytes: Int64[np.ndarray, " storages"]
    made_by: Int64[np.ndarray, " storages"]
    held: Int64[np.ndarray, "2 holds"]


def storages(program: Program) -> Storages:
    """Find the values of a program that share memory, by fake tensors: `_unsafe_view` and `contiguous` return their
    argument's memory without declaring it. An operation that fake tensors cannot compute has memory of its own."""
    fake = FakeTensorMode()
    values: Values = [None if each is None else fake.from_tensor(each) for each in fixed_values(program)]
    fixed = {storage for value in values for storage, _ in _memory(value)}
    number: dict[int, int] = {}
    num_bytes: list[int] = []
    made_by: list[int] = []
    held: list[tuple[int, int]] = []
    with torch.no_grad(), fake:
        for node, call in enumerate(bind(program, torch.device("cpu"))):
            if call is None:
                continue
            try:
                values[node] = call(values)
                lies_in = _memory(values[node])
            except Exception:
                lies_in = [(-node, int(program.output_bytes[node]))]
            for storage, size in lies_in:
                if storage in fixed:
                    continue
                if storage not in number:
                    number[storage] = len(num_bytes)
                    num_bytes.append(size)
                    made_by.append(node)
                held.append((number[storage], node))
    pairs = np.array(held, np.int64).reshape(-1, 2).T
    return Storages(np.array(num_bytes, np.int64), np.array(made_by, np.int64), pairs)


def fixed_values(program: Program) -> list[Any]:
    """Return values of inputs and constants, None for operations."""
    return [*program.inputs, *(operation.constant for operation in program.operations[len(program.inputs) :])]


def _memory(value: Any) -> Sequence[tuple[int, int]]:
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return [(storage._cdata, storage.nbytes())] if storage.nbytes() else []
    return [pair for each in value for pair in _memory(each)] if isinstance(value, list | tuple) else []


HOST = torch.device("cpu")
Values = list[Any]  # the value of each node, None where not (or no longer) known
Call = Callable[[Values], Any]
Step = tuple[int, Call, tuple[int, ...]]  # node, its call, nodes whose values nobody reads afterwards


@lru_cache(maxsize=16)
def bind(program: Program, device: torch.device) -> tuple[Call | None, ...]:
    """Return for each operation a function of the list of values; None for inputs and constants.

    Each is one generated lambda, `lambda v: f(v[3], v[7], [1], dim=0)`, without a loop over arguments. Operations that
    name a device (`zeros`, `_to_copy`) get `device` instead.
    """
    names: dict[str, Any] = {}
    lambdas = [_lambda(node, operation, device, names) for node, operation in enumerate(program.operations)]
    # The source holds names made here, integers and keywords of operator schemas, no text of the user.
    return tuple(eval(compile(f"[{','.join(lambdas)}]", f"<{program.name}>", "eval"), names))


def _lambda(node: int, operation: Operation, device: torch.device, names: dict[str, Any]) -> str:
    if operation.kind != "operation":
        return "None"

    def text(value: Any) -> str:
        if isinstance(value, Reference):
            return f"v[{value.node}]"
        if isinstance(value, list | tuple) and any(True for _ in references(value)):
            return f"[{','.join(map(text, value))}]"
        names[f"c{len(names)}"] = value
        return f"c{len(names) - 1}"

    kwargs = {key: device if key == "device" else value for key, value in operation.kwargs.items()}
    arguments = [text(value) for value in operation.args]
    arguments += [f"{key}={text(value)}" for key, value in kwargs.items()]
    function = f"f{node}"
    names[function] = operation.target
    return f"lambda v:{function}({','.join(arguments)})"


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """Return `value` with the strides of `like`, for which views were captured; itself if it has them, or if `like` is
    expanded."""
    if value.stride() == like.stride() or is_expanded(like):
        return value
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=value.device).copy_(value)


def copied(value: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
    """Return a copy on a device with the strides of the original; with `non_blocking` an accelerator may still be
    copying.

    Examples:
        >>> copied(torch.ones(2, 1, 3).expand(2, 4, 3), torch.device("cpu")).stride()
        (3, 0, 1)
    """
    if 0 not in value.stride():
        return value.to(device, non_blocking=non_blocking, copy=True)
    return unexpanded(value).to(device, non_blocking=non_blocking, copy=True).expand(value.shape)


def is_expanded(value: Tensor) -> bool:
    """True if several elements of a tensor share one place in memory.

    Examples:
        >>> is_expanded(torch.ones(2, 1).expand(2, 4)), is_expanded(torch.ones(2, 4))
        (True, False)
    """
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def unexpanded(value: Tensor) -> Tensor:
    """Return a view of a tensor that has each expanded dimension once.

    Examples:
        >>> unexpanded(torch.ones(2, 1, 3).expand(2, 4, 3)).shape
        torch.Size([2, 1, 3])
    """
    sizes = [size if stride else min(size, 1) for size, stride in zip(value.shape, value.stride(), strict=True)]
    return value.as_strided(sizes, value.stride()) if 0 in value.stride() else value


def eager(program: Program, inputs: Sequence[Tensor] | None = None, device: torch.device = HOST) -> list[Any]:
    """Run the program in order on the calling thread, with PyTorch's own threads; return flat outputs.

    Args:
        program: the program.
        inputs: in the memory of the host, or for an accelerator anywhere; those of the program if None.
        device: of all operations and of the outputs.

    Raises:
        ExecutionError: an operation failed.

    Examples:
        >>> from gst.programs import capture_module
        >>> eager(capture_module(torch.nn.ReLU(), (torch.tensor([-1.0, 2.0]),)))
        [tensor([0., 2.])]
    """
    values: Values = [*program.check_inputs(inputs)]
    values += fixed_values(program)[len(values) :]
    if device != HOST:
        values = [None if value is None else copied(value.detach(), device) for value in values]
    node = -1
    try:
        with torch.no_grad():
            for node, call, dead in in_program_order(program, device):
                values[node] = call(values)
                for each in dead:
                    values[each] = None
    except Exception as error:  # whatever operators raise
        raise ExecutionError(f"{type(error).__name__}: {error}", "the calling thread", node) from error
    return [values[each.node] if isinstance(each, Reference) else each for each in program.outputs]


@lru_cache(maxsize=16)
def in_program_order(program: Program, device: torch.device = HOST) -> list[Step]:
    """Return every operation in the order of the program, on one device, with the values to free after each; outputs of
    the program are never freed."""
    results = {each.node for each in program.outputs if isinstance(each, Reference)}
    calls = [(node, call) for node, call in enumerate(bind(program, device)) if call is not None]
    last_reader: dict[int, int] = {}
    for node, _ in calls:
        last_reader.update(dict.fromkeys((node, *program.operations[node].producers), node))
    dead: dict[int, list[int]] = {}
    for node, reader in last_reader.items():
        if node not in results:
            dead.setdefault(reader, []).append(node)
    return [(node, call, tuple(dead.get(node, ()))) for node, call in calls]


def are_weights(program: Program) -> list[bool]:
    """Return for each input True if it is a weight that the program does not renew."""
    homes = program.parameter_home
    renews = any(isinstance(each, Reference) and homes[each.node] >= 0 for each in program.outputs)
    return [not renews and homes[number] >= 0 for number in range(len(program.inputs))]


def num_weights(program: Program) -> int:
    """Return the number of first inputs that are weights which the program does not renew: calls need not copy them.

    Examples:
        >>> from gst.programs import capture_module
        >>> num_weights(capture_module(torch.nn.Linear(2, 3), (torch.ones(1, 2),)))
        2
    """
    return [*are_weights(program), False].index(False)


def module_on(program: Program, device: torch.device) -> fx.GraphModule:
    """Return `as_module` with its constants, and the tensors that it makes, on a device."""
    operations = tuple(
        replace(each, kwargs={**each.kwargs, "device": device}) if "device" in each.kwargs else each
        for each in program.operations
    )
    return as_module(replace(program, operations=operations)).to(device)


Links = tuple[Float64[np.ndarray, "devices devices"], Float64[np.ndarray, "devices devices"]]  # us; bytes per us
COPY_US = 20.0  # from memory to memory where no link was measured
COPY_BYTES_PER_US = 5_000.0  # 5 GB/s, likewise


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of each operation of a program on each device, alone, and of the links between devices.

    Args:
        edges: producer -> consumer.
        computed: false for inputs and constants, which take no time and no memory.
        kept: True for outputs, which are never freed.
        times_us: of each operation alone; infinite where it cannot run.
        output_bytes: of the value of each node.
        own_bytes: the most that each operation takes while it runs, its result included.
        storages: allocations, and the values that keep them.
        latency_us: fixed part of a transfer's time, from device (row) to device (column); 0 within a memory.
        bytes_per_us: of a copy; infinite within a memory.
        copies_queue: True if each memory sends one copy after the other, as a stream program does; otherwise links
            never queue.
        load: share of the cores that other processes took during the measurement, 0 .. 1; None if unknown.
    """

    devices: tuple[Device, ...]
    edges: Int64[np.ndarray, "2 edges"]
    computed: Bool[np.ndarray, " nodes"]
    kept: Bool[np.ndarray, " nodes"]
    times_us: Float64[np.ndarray, "devices nodes"]
    output_bytes: Int64[np.ndarray, " nodes"]
    own_bytes: Int64[np.ndarray, "devices nodes"]
    storages: Storages
    latency_us: Float64[np.ndarray, "devices devices"]
    bytes_per_us: Float64[np.ndarray, "devices devices"]
    copies_queue: bool = False
    load: float | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.computed)

    @cached_property
    def readers(self) -> Rows:
        """Computed nodes that read the value of each computed node, in program order."""
        made, reader = self._computed_edges
        return rows(made, reader, self.num_nodes)

    @cached_property
    def producers(self) -> Rows:
        """Computed nodes whose values each computed node reads."""
        made, reader = self._computed_edges
        return rows(reader, made, self.num_nodes)

    @cached_property
    def cores(self) -> Rows:
        """Cores that each device uses, see `core_numbers`."""
        use = core_use(self.devices)
        return Rows(np.append(0, np.cumsum(use.sum(1))), np.nonzero(use)[1])

    @property
    def _computed_edges(self) -> Int64[np.ndarray, "2 edges"]:
        edges = self.edges[:, self.computed[self.edges].all(0)]
        return edges[:, np.argsort(edges[1], kind="stable")]

    @property
    def traffic_bytes(self) -> Float64[np.ndarray, " nodes"]:
        """Bytes that each operation reads and writes: its result, and each value that it reads."""
        size = self.output_bytes.astype(np.float64)
        return (np.bincount(self.edges[1], size[self.edges[0]], len(size)) + size) * self.computed


def profiled_costs(
    program: Program, devices: Sequence[Device], times_us: Float64[np.ndarray, "devices nodes"],
    links: Links | None = None,
) -> Costs:  # fmt: skip
    """Return costs of a program whose memory was not measured: an operation takes no more than its result.

    Args:
        times_us: of each operation alone; infinite where it cannot run.
        links: from `gst.execution.costs.measured_links`; if None, `COPY_US` and `COPY_BYTES_PER_US` between memories.

    Raises:
        ValueError: an operation can run on none of the devices.
    """
    if (stuck := np.flatnonzero(np.isinf(times_us).all(0))).size:
        names = ", ".join(device.name for device in devices)
        what = program.operations[stuck[0]].target
        raise ValueError(f"operation {stuck[0]} of {program.name} ({what}) can run on none of {names}")
    _, memory = memories_of(devices)
    apart = memory[:, None] != memory
    own_bytes = np.tile(program.output_bytes, (len(devices), 1))
    latency_us, bytes_per_us = links or (COPY_US * apart, np.where(apart, COPY_BYTES_PER_US, np.inf))
    computed = np.array([each.kind == "operation" for each in program.operations])
    kept = np.zeros(program.num_nodes, bool)
    kept[[each.node for each in program.outputs if isinstance(each, Reference)]] = True
    allocated, edges, sizes = storages(program), program.graph.edges, program.output_bytes
    return Costs(tuple(devices), edges, computed, kept, times_us, sizes, own_bytes, allocated, latency_us, bytes_per_us)


def shortest_us(runs: Sequence[Timeline]) -> Float64[np.ndarray, " nodes"]:
    """Return the shortest time of each operation over several runs of a plan, in microseconds: other processes
    interrupt some operations of every run, but seldom the same one in all.

    Examples:
        >>> begins = np.zeros(2)
        >>> runs = [Timeline(np.zeros(2, np.int64), begins, np.array(ends)) for ends in ([9.0, 2.0], [1.0, 3.0])]
        >>> shortest_us(runs).tolist()
        [1.0, 2.0]
    """
    return np.min([each.end_us - each.begin_us for each in runs], axis=0)
