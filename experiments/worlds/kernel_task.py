"""Kernels of a compiled step as a task, whose devices are streams of one accelerator.

Baselines, searches, policies and the simulator take it as they take any other task.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64

from gst.graphs.graph import Graph
from gst.kernels.lower import storages_of, stream_program
from gst.kernels.program import KernelProgram
from gst.lowering.calls import Costs
from gst.lowering.plan import Plan, StreamProgram, ranks
from gst.machine.devices import Device
from gst.placement.machines import STREAMS
from gst.placement.task import Task
from gst.programs.features import FEATURE_NAMES, NUM_OPCODES


def kernel_task(program: KernelProgram, times_us: Float64[np.ndarray, " kernels"], num_streams: int) -> Task:
    """Return the task of putting kernels on streams of their device.

    Args:
        times_us: of each kernel alone, see `gst.kernels.run.kernel_times_us`.
    """
    name, count = str(program.device), program.num_kernels
    name = name if ":" in name else f"{name}:0"
    names = [name, *(f"{name}/stream:{number}" for number in range(1, num_streams))]
    devices = tuple(Device(each, program.device.type, (), 1, name, "a stream") for each in names)
    graph = Graph(_features(program), program.dependencies, _opcodes(program), name=program.name)
    costs = Costs(
        devices, program.dependencies, np.ones(count, bool), program.returns, np.tile(times_us, (num_streams, 1)),
        program.written_bytes, np.tile(program.written_bytes, (num_streams, 1)), storages_of(program),
        np.zeros((num_streams,) * 2), np.full((num_streams,) * 2, np.inf),
    )  # fmt: skip
    return Task(
        program.name, graph, costs, np.arange(count), np.zeros(count, np.int64), STREAMS, assigned_key=program.key
    )


def _features(program: KernelProgram) -> Float32[np.ndarray, "kernels features"]:
    """Return the features of a program's operations (`FEATURE_NAMES`) that kernels have too; others are 0."""
    features = np.zeros((program.num_kernels, len(FEATURE_NAMES)), np.float32)
    column = {name: number for number, name in enumerate(FEATURE_NAMES)}
    edges, count = program.dependencies, program.num_kernels
    features[:, column["log_output_bytes"]] = np.log1p(program.written_bytes)
    features[:, column["log_input_bytes"]] = np.log1p(program.read_bytes)
    features[:, column["is_operation"]] = 1
    features[:, column["is_elementwise"]] = [kernel.kind == "generated" for kernel in program.kernels]
    features[:, column["log_in_degree"]] = np.log1p(np.bincount(edges[1], minlength=count))
    features[:, column["log_out_degree"]] = np.log1p(np.bincount(edges[0], minlength=count))
    return features


def _opcodes(program: KernelProgram) -> Int64[np.ndarray, " kernels"]:
    numbers = {name: number for number, name in enumerate(sorted({each.name for each in program.kernels}))}
    return np.array([numbers[each.name] % NUM_OPCODES for each in program.kernels], np.int64)


def lowered(program: KernelProgram, plan: Plan) -> StreamProgram:
    """Return the stream program of a plan of `kernel_task`."""
    return stream_program(program, plan.placement, ranks(plan))
