"""Groups compiled by Inductor, each structure once on a machine, with what was measured of it."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from gst.devices.discover import Device
from gst.devices.fusion.legality import Group
from gst.devices.fusion.rewrite import alone, rewritten
from gst.devices.fusion.structure import layout
from gst.devices.native.build import cache_directory, load
from gst.devices.native.lower import CompiledGroup, lower
from gst.devices.native.machine import machine
from gst.files.untrusted import read_object
from gst.programs import Program, as_module, outputs_differ

LIBRARY, RECORD = "group.so", "record.json"
REPETITIONS, WARMUP = 30, 3


@dataclass(frozen=True)
class Record:
    """What is known of a structure.

    Args:
        key: of the structure.
        num_operations: of the group.
        threads: of the device and of the compiled code.
        compile_s: how long compiling took, in seconds.
        compiled_us: least time of the compiled group in the interpreter, in microseconds; None if it cannot run.
        eager_us: least time of its operations one by one, in turns with the former; None likewise.
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
    def pays(self) -> bool:
        """Is the compiled group there, and faster?"""
        return self.share < 1.0

    @property
    def share(self) -> float:
        """What part of the time of its operations the group takes; 1 where it runs as it did, one by one."""
        if self.compiled_us is None or self.eager_us is None:
            return 1.0
        return min(1.0, self.compiled_us / self.eager_us)


def library_path(key: str) -> Path:
    """Where the compiled code of a structure lies if there is any."""
    return _home(key) / LIBRARY


def recorded(key: str) -> Record | None:
    """What was measured before; None if nothing was, or the files of it are damaged."""
    try:
        record = Record(**read_object(_home(key) / RECORD))
    except (OSError, ValueError, TypeError):
        return None
    return record if record.reason or library_path(key).exists() else None


def make(key: str, program: Program, group: Group, inputs: Sequence[Tensor], device: Device) -> Record:
    """Compile a group for a device and measure it against its operations one by one. What goes wrong is recorded, and
    not tried again.

    Args:
        key: of the structure.
        program: that the group is part of.
        group: what is compiled, on its own.
        inputs: example values of its inputs.
        device: where it will run; the compiled code uses as many threads.
    """
    home = _home(key)
    home.parent.mkdir(parents=True, exist_ok=True)
    compiled_us: float | None = None
    eager_us: float | None = None
    seconds, reason = 0.0, ""
    with TemporaryDirectory(prefix="partial-", dir=home.parent) as partial:
        path = Path(partial) / "kept"
        path.mkdir()
        try:
            by_itself, begin = alone(program, group, inputs), time.perf_counter()
            _compile(by_itself, Path(partial) / LIBRARY, device.threads)
            seconds = time.perf_counter() - begin
            for made in Path(partial).glob(f"{Path(LIBRARY).stem}.*"):
                made.rename(path / made.name)
            compiled_us, eager_us = _compare(by_itself, CompiledGroup(path / LIBRARY, len(group.nodes)), device)
        except Exception as error:  # whatever a compiler or an operator raises
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0][:300]}"
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
    """Ahead of time, by AOTInductor; Inductor is described by Ansel et al., PyTorch 2, ASPLOS 2024."""
    options = {"cpp.threads": threads, "compile_threads": 1, "aot_inductor.output_path": str(library)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aot_compile(as_module(program), program.inputs, options=options)


def _compare(program: Program, compiled: CompiledGroup, device: Device) -> tuple[float, float]:
    """Microseconds of the compiled group and of its operations one by one, in turns, in the interpreter: the least of
    all runs, which other work on this machine disturbs least.

    Raises:
        ValueError: their outputs differ in value or in layout, or one of them fails.
    """
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
            _check(*outputs)
    finally:
        runner.forget()
        runner.close()
    compiled_us, eager_us = times[WARMUP:].min(0).tolist()
    return compiled_us, eager_us


def _check(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    if (difference := outputs_differ(got, want)) is not None:
        raise ValueError(f"compiled, {difference}")
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        if layout(a) != layout(b):
            raise ValueError(f"compiled, output {position} has strides {a.stride()} instead of {b.stride()}")
