"""Compiled code of plans: the interpreter, with its threads and programs in its form; and fusion groups.

Inductor compiles each structure of groups once: into a library for the interpreter, or in this process for lanes.
"""

from __future__ import annotations

import hashlib
import json
import operator
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gst.execution.costs import first_runs, one_graph, repeated, span_us
from gst.execution.lanes import GroupCall, Values
from gst.lowering.calls import copied, fixed_values, module_on
from gst.lowering.fusion import CompiledGroup, Group, alone, fusion_groups, renumbered, rewritten
from gst.lowering.plan import Plan, contracted_plan, says_no_memory
from gst.machine.devices import Device, core_numbers, cpu_model, usable_cores
from gst.programs import Operation, Program, Reference, as_module, outputs_differ
from gst.programs.operation import form_of, form_of_target, references
from gst.util.compiled import cache_directory, cpp_library
from gst.util.progress import notice
from gst.util.recording import is_here
from gst.util.untrusted import first_line, read_object

# The interpreter takes these as the numbers that operators know them by.
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def lower(program: Program, callers: int) -> Any:
    """Return the program as a `torch.classes.gst.Program`, with arguments in the order of the operators' schemas.

    Args:
        program: the program.
        callers: number of threads that may be in one compiled group at once.

    Raises:
        ValueError: an operation is no registered operator; the message names it.
    """
    lowered = torch.classes.gst.Program(program.num_nodes)
    for node, operation in enumerate(program.operations):
        if operation.kind == "constant":
            lowered.constant(node, operation.constant)
        elif operation.kind == "operation" and operation.target is operator.getitem:
            lowered.item(node, operation.args[0].node, operation.args[1])
        elif isinstance(operation.target, CompiledGroup):
            lowered.compiled(node, str(operation.target.library), callers)
            for argument in operation.args:
                lowered.value(node, argument.node)
        elif operation.kind == "operation":
            _lower(lowered, node, operation)
    lowered.finish(sorted({each.node for each in program.outputs if isinstance(each, Reference)}))
    return lowered


def _lower(lowered: Any, node: int, operation: Operation) -> None:
    schema = getattr(operation.target, "_schema", None)
    if schema is None:
        raise ValueError(f"node {node} calls {operation.target}, which is no operator of PyTorch's dispatcher")
    lowered.call(node, schema.name, schema.overload_name)
    for position, argument in enumerate(schema.arguments):
        if position < len(operation.args):
            value = operation.args[position]
        elif argument.name in operation.kwargs:
            value = operation.kwargs[argument.name]
        else:
            value = argument.default_value
        if isinstance(value, Reference):
            lowered.value(node, value.node)
        elif isinstance(value, list | tuple) and any(True for _ in references(value)):
            lowered.list(node, [-1 if each is None else each.node for each in value])
        else:
            lowered.fixed(node, _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(value) or None  # the interpreter makes an empty list of the type that is wanted
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return MEMORY_FORMATS.get(value, value) if isinstance(value, torch.memory_format) else value


SPIN_US = 500


def machine(devices: Sequence[Device]) -> Any:
    """Return a started `torch.classes.gst.Machine` with a thread for each first core of a device."""
    numbers = core_numbers(devices)
    made = torch.classes.gst.Machine(1 + max(core for mine in numbers for core in mine), SPIN_US)
    leaders: dict[int, list[Device]] = {}
    for device, cores in zip(devices, numbers, strict=True):
        leaders.setdefault(cores[0], []).append(device)
    worker: dict[int, int] = {}
    for leader, led in leaders.items():
        widest = max(led, key=lambda device: device.threads)
        worker[leader] = made.worker(list(widest.cores[:1]), list(widest.cores), widest.threads, leader)
    for device, cores in zip(devices, numbers, strict=True):
        made.device(cores, device.threads, worker[cores[0]])
    made.start()
    return made


SOURCE = Path(__file__).with_name("interpreter.cpp")
FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC")


@lru_cache(maxsize=1)
def load() -> None:
    """Register `torch.classes.gst`; compile the interpreter (about 15 s) unless this was done before.

    Raises:
        ValueError: there is no C++ compiler, or it fails.
    """
    libraries = ("torch", "torch_cpu", "c10")
    torch.ops.load_library(str(cpp_library(SOURCE, "interpreter", FLAGS, libraries, "plans on core sets need")))


@dataclass(frozen=True, eq=False)
class Fused:
    """Program and plan in which groups are compiled.

    Args:
        program: each compiled group is one node of it.
        plan: for that program; it fuses nothing more.
        node_of: for each node of the old program the node of the new one that computes it.
        num_groups: number of compiled groups.
        records: each legal group with the record of its structure.
    """

    program: Program
    plan: Plan
    node_of: Int64[np.ndarray, " nodes"]
    num_groups: int
    records: tuple[tuple[Group, Record], ...]


def fused(program: Program, plan: Plan, devices: Sequence[Device], keep_if_faster: bool = True) -> Fused:
    """Compile the legal groups of a plan (`legalise`), each structure once on this machine, and keep code and times in
    `cache_directory()`. A group that cannot be compiled, or whose outputs differ, runs one by one.

    Args:
        program, plan: the program, and a plan of it with `fusion`.
        devices: CPU devices that the plan names.
        keep_if_faster: fuse only groups that are faster compiled.

    Raises:
        ValueError: the plan is not for this program or these devices.
    """
    records = group_records(program, plan, devices)
    chosen = {
        group: CompiledGroup(_home(record.key) / LIBRARY, len(group.nodes))
        for group, record in records
        if record.share < 1.0 or (not keep_if_faster and not record.reason)
    }
    made = rewritten(program, chosen)
    return Fused(
        made.program, contracted_plan(plan, made.node_of, made.origin), made.node_of, len(chosen), tuple(records)
    )


def group_records(program: Program, plan: Plan, devices: Sequence[Device]) -> list[tuple[Group, Record]]:
    """Return each legal group of a plan with the record of its structure, which is made if it is new. Raises as
    `fused`."""
    homes = plan.homes([device.name for device in devices])
    home = {group: devices[homes[group.nodes[0]]] for group in fusion_groups(program, plan) if group.outputs}
    keys: dict[Group, str] = {}
    records: dict[str, Record | None] = {}
    for group, device in home.items():
        try:
            key = structure_key(program, group, [layouts(program)[node] for node in group.inputs], device.threads)
            if key not in records:
                records[key] = recorded(key)
        except ValueError as error:
            key = f"none of {group.nodes[0]}"
            records[key] = Record("", len(group.nodes), device.threads, 0.0, None, None, str(error))
        keys[group] = key
    new = {key: group for group, key in reversed(keys.items()) if records[key] is None}  # the first group of each
    values = example_values(program, {node for group in new.values() for node in group.inputs}) if new else {}
    for number, (key, group) in enumerate(reversed(new.items()), 1):
        notice(f"compiling group {number} of {len(new)} ({len(group.nodes)} operations, once)")
        records[key] = make(key, program, group, [values[node] for node in group.inputs], home[group])
    return [(group, record) for group, key in keys.items() if (record := records[key]) is not None]


LIBRARY, RECORD = "group.so", "record.json"
REPETITIONS, WARMUP = 30, 3


@dataclass(frozen=True)
class Record:
    """Measurement of a structure.

    Args:
        key: of the structure.
        num_operations: of the group.
        threads: of the device and of the compiled code.
        compile_s: seconds that compiling took.
        compiled_us: least time of the compiled group in the interpreter, in microseconds; None if it cannot run.
        eager_us: least time of its operations one by one, measured alternately; None likewise.
        reason: why it cannot run compiled; empty if it can.
    """

    key: str
    num_operations: int
    threads: int
    compile_s: float
    compiled_us: float | None
    eager_us: float | None
    reason: str = ""

    @property
    def share(self) -> float:
        """Compiled time / time of the operations one by one; 1 where they run one by one."""
        if self.compiled_us is None or self.eager_us is None:
            return 1.0
        return min(1.0, self.compiled_us / self.eager_us)


def recorded(key: str) -> Record | None:
    """Read the record of a structure; None without one, or if its files are damaged."""
    try:
        record = Record(**read_object(_home(key) / RECORD))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.reason or (_home(key) / LIBRARY).exists() else None


def make(key: str, program: Program, group: Group, inputs: Sequence[Tensor], device: Device) -> Record:
    """Compile a group for the threads of a device, with example values of its inputs, and compare its time with that of
    its operations one by one. Failures are recorded, and not tried again."""
    home = _home(key)
    home.parent.mkdir(parents=True, exist_ok=True)
    compiled_us: float | None = None
    eager_us: float | None = None
    seconds, reason = 0.0, ""
    with TemporaryDirectory(prefix="partial-", dir=home.parent) as folder:
        path = Path(folder) / "whole"
        path.mkdir()
        try:
            by_itself, begin = alone(program, group, inputs), time.perf_counter()
            _compile(by_itself, Path(folder) / LIBRARY, device.threads)
            seconds = time.perf_counter() - begin
            for made in Path(folder).glob(f"{Path(LIBRARY).stem}.*"):
                made.rename(path / made.name)
            compiled_us, eager_us = _compare(by_itself, CompiledGroup(path / LIBRARY, len(group.nodes)), device)
        except Exception as error:  # whatever a compiler or an operator raises
            reason = first_line(error, 300)
        record = Record(key, len(group.nodes), device.threads, seconds, compiled_us, eager_us, reason)
        (path / RECORD).write_text(json.dumps(asdict(record)))
        if recorded(key) is None:
            shutil.rmtree(home, ignore_errors=True)
        with suppress(OSError):  # another process was quicker
            path.rename(home)
    return recorded(key) or record


def _home(key: str) -> Path:
    return cache_directory() / "fusion" / key


def _compile(program: Program, library: Path, threads: int) -> None:
    """Compile ahead of time, by AOTInductor (Ansel et al., PyTorch 2, ASPLOS 2024)."""
    options = {"cpp.threads": threads, "compile_threads": 1, "aot_inductor.output_path": str(library)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aot_compile(as_module(program), program.inputs, options=options)


def _compare(program: Program, compiled: CompiledGroup, device: Device) -> tuple[float, float]:
    """Return the least microseconds of the compiled group and of its operations one by one, run alternately."""
    load()
    inputs = range(len(program.inputs))
    nodes = tuple(range(len(inputs), program.num_nodes))
    group = Group(nodes, tuple(inputs), tuple(each.node for each in program.outputs))
    both = (rewritten(program, {group: compiled}).program, program)
    schedules = [
        torch.classes.gst.Schedule(lower(each, 1), [0] * each.num_nodes, list(range(each.num_nodes))) for each in both
    ]
    runner, times = machine([device]), np.zeros((WARMUP + REPETITIONS, 2))
    try:
        for row in times:
            outputs = []
            for column, (each, schedule) in enumerate(zip(both, schedules, strict=True)):
                runner.run(schedule, list(program.inputs), 0)
                if runner.failed_node() >= 0:
                    raise ValueError(runner.reason())
                outputs.append(runner.results([output.node for output in each.outputs]))
                row[column] = max(runner.ends()) - min(runner.begins()[len(inputs) :])
            check_alike(*outputs)
    finally:
        runner.forget()
        runner.close()
    compiled_us, eager_us = times[WARMUP:].min(0).tolist()
    return compiled_us, eager_us


def check_alike(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Raise ValueError if outputs of a compiled group differ from those of its operations in value or in layout."""
    if (difference := outputs_differ(got, want)) is not None:
        raise ValueError(f"compiled, {difference}")
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        if layout(a) != layout(b):
            raise ValueError(f"compiled, output {position} has strides {a.stride()} instead of {b.stride()}")


SCHEMA = 1
CPU = torch.device("cpu")
Layout = tuple[tuple[int, ...], tuple[int, ...], str]  # shape, strides, dtype


@lru_cache(maxsize=16)
def layouts(program: Program, device: torch.device = CPU) -> dict[int, Layout]:
    """Return shape, strides and dtype of every tensor of a program, from a run in program order on a device."""
    return {node: layout(value) for node, value in _values(program, device) if isinstance(value, Tensor)}


def example_values(program: Program, nodes: Collection[int], device: torch.device = CPU) -> dict[int, Tensor]:
    """Return the tensors of these nodes for the example inputs."""
    return {node: value for node, value in _values(program, device) if node in nodes and isinstance(value, Tensor)}


def layout(value: Tensor) -> Layout:
    """Return shape, strides and dtype; the stride along an axis of one element, which means nothing, is 1."""
    strides = (stride if size > 1 else 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    return tuple(value.shape), tuple(strides), str(value.dtype)


def structure_key(program: Program, group: Group, inputs: Sequence[Layout], threads: int) -> str:
    """Return 16 hexadecimal digits of a group's operations, layouts and threads, of the version of torch and the
    processor.

    Raises:
        ValueError: an operation or an argument has no form in a file.
    """
    number = {node: position for position, node in enumerate([*group.inputs, *group.nodes])}
    operations = []
    for node in group.nodes:
        operation = program.operations[node]
        args, kwargs = renumbered(operation.args, number), renumbered([*operation.kwargs.items()], number)
        operations.append([form_of_target(operation.target), form_of(args), form_of(kwargs)])
    outputs = [number[node] for node in group.outputs]
    content = [SCHEMA, operations, inputs, outputs, threads, torch.__version__, cpu_model()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _values(program: Program, device: torch.device) -> Iterator[tuple[int, Any]]:
    """Yield each node and its value: of inputs and constants where they lie, of operations on a device."""
    yield from ((node, value) for node, value in enumerate(fixed_values(program)) if value is not None)
    with torch.no_grad():
        yield from ((node, values[node]) for node, _, values, _ in first_runs(program, device))


# In this process, for lanes: a graph records the kernels that compiled code launches ----------------------------------

BATCH = 20  # calls in a graph that is timed: launching it takes as long as a short kernel
Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True, eq=False)
class Structure:
    """Groups of one structure on one device.

    Args:
        operations: runs them one by one, from the values of a group's inputs to those of its outputs.
        layouts: of the inputs for which it was compiled.
        compiled: the same function compiled, if that is faster.
        share: compiled time / time of the operations one by one; 1 where they run one by one.
        reason: why they run one by one; empty if compiled.
    """

    operations: Function
    layouts: tuple[Layout, ...]
    compiled: Function | None = None
    share: float = 1.0
    reason: str = ""


class LaneGroups:
    """The groups of plans of one program: each structure is compiled for its device and measured once."""

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self._program, self._devices = program, {device.name: device for device in devices}
        self._structures: dict[tuple[object, torch.device], Structure] = {}
        self._num_cores = len(usable_cores())  # the thread that compiles may be bound to one

    def shares(self, plan: Plan) -> dict[int, float]:
        """Return compiled time / time of the operations one by one for each legal group of a plan, by first node."""
        return {group.nodes[0]: structure.share for group, structure in self._groups(plan)}

    def calls(self, plan: Plan) -> dict[tuple[int, ...], GroupCall]:
        """Return the functions of the groups of a plan that are faster compiled, by their nodes, for `LaneExecutor`."""
        faster = [(group, structure) for group, structure in self._groups(plan) if structure.compiled is not None]
        return {group.nodes: partial(_call, group, structure) for group, structure in faster}

    def _groups(self, plan: Plan) -> list[tuple[Group, Structure]]:
        """Return each legal group of a plan with its structure, which is compiled if it is new."""
        groups = [group for group in fusion_groups(self._program, plan) if group.outputs]
        homes = [self._devices[plan.devices[plan.placement[group.nodes[0]]]] for group in groups]
        keys = [self._key(group, home) for group, home in zip(groups, homes, strict=True)]
        new = {key: group for key, group in zip(keys, groups, strict=True) if key not in self._structures}
        for device in dict.fromkeys(device for _, device in new):
            mine = {key: group for key, group in new.items() if key[1] == device}
            values = example_values(self._program, {node for group in mine.values() for node in group.inputs}, device)
            for number, (key, group) in enumerate(mine.items(), 1):
                notice(f"compiling group {number} of {len(mine)} ({len(group.nodes)} operations) for {device}")
                inputs = [copied(values[node], device) for node in group.inputs]
                self._structures[key] = self._structure(alone(self._program, group, inputs), device)
        return [(group, self._structures[key]) for group, key in zip(groups, keys, strict=True)]

    def _key(self, group: Group, home: Device) -> tuple[object, torch.device]:
        """Return a key that groups of one structure share; the group itself if an operation has no form in a file."""
        of_node = layouts(self._program, home.torch_device)
        inputs = [of_node[node] for node in group.inputs]
        try:
            return structure_key(self._program, group, inputs, home.threads), home.torch_device
        except ValueError:
            return group, home.torch_device

    def _structure(self, program: Program, device: torch.device) -> Structure:
        """Compile and measure a group, as a program of its own with inputs on the device; raise if memory is short."""
        inputs, operations = list(program.inputs), module_on(program, device)
        structure = partial(Structure, operations, tuple(map(layout, inputs)))
        try:
            with torch.no_grad(), torch._inductor.config.patch(compile_threads=self._num_cores):
                module: Any = module_on(program, device)  # of its own: the compiler changes what it is given
                compiled: Function = torch._inductor.compile(module, [*inputs])
                check_alike(compiled(*inputs), operations(*inputs))
            compiled_us, one_by_one_us = _times_us([partial(compiled, *inputs), partial(operations, *inputs)], device)
        except Exception as error:  # whatever a compiler, an operator or a graph raises
            if says_no_memory(str(error)):
                raise
            return structure(reason=first_line(error, 300))
        if compiled_us >= one_by_one_us:
            return structure(reason=f"{compiled_us:.1f} us compiled, {one_by_one_us:.1f} us one by one")
        return structure(compiled, compiled_us / one_by_one_us)


def _call(group: Group, structure: Structure, values: Values) -> Iterator[tuple[int, Any]]:
    """Yield nodes and values of a group's outputs. Compiled code runs only for the layouts of the examples."""
    inputs = [values[node] for node in group.inputs]
    is_alike = tuple(map(layout, inputs)) == structure.layouts
    function = structure.compiled if is_alike and structure.compiled is not None else structure.operations
    return zip(group.outputs, function(*inputs), strict=True)


def _times_us(functions: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Return the least time of a call of each function, run alternately; on an accelerator from graphs of `BATCH`
    calls."""

    with torch.no_grad():
        batches = [partial(repeated, function, BATCH) for function in functions]
        timed = [one_graph(each, device) for each in batches] if is_here(device) else batches
        times = [[span_us(each, device) / BATCH for each in timed] for _ in range(WARMUP + REPETITIONS)]
    least: list[float] = np.min(times[WARMUP:], axis=0).tolist()
    return least
