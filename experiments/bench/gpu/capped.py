"""A model in less memory of an accelerator than it needs: a plan over accelerator and CPU, compared with Accelerate.

Accelerate's device_map fills the accelerator with the first layers, and brings the weights of the others there for each
call. The plan leaves the others on the CPU, which computes them; the checker proves that it keeps the limit.

python -m experiments.bench.gpu.capped SETTINGS.json    # out: lines of JSON, each with all that is known by then
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from experiments.bench.gpu.record import clocks_of, print_rows
from gst.execution.lane_graphs import LaneGraph
from gst.execution.lanes import LaneExecutor
from gst.execution.measure import measure
from gst.lowering.calls import eager, storages
from gst.lowering.happens_before import check
from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan, StreamProgram
from gst.machine.devices import Device
from gst.programs import Program, capture_module, outputs_differ
from gst.util.untrusted import first_line
from gst.whole_model.child_process import Run

WITHOUT_ACCELERATE = "accelerate is not installed (extra 'models')"
OFFLOAD = "Accelerate, offload"


def model_of(blocks: int, width: int) -> nn.Sequential:
    """Layers one after the other, each with as many weights as the one before."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(blocks))).eval()


def offloaded(module: nn.Module, inputs: tuple[Tensor, ...], device: torch.device, limit: int, folder: Path) -> Run:
    """The module under Accelerate's device_map: what does not fit into `limit` bytes of the device stays on the CPU;
    without an accelerator, on disk.

    Args:
        module: which it changes.
        folder: for weights on disk.

    Raises:
        ValueError: accelerate is not installed.
    """
    if find_spec("accelerate") is None:
        raise ValueError(WITHOUT_ACCELERATE)
    from accelerate import dispatch_model, infer_auto_device_map

    main: Any = device.type if device.type == "cpu" else device.index or 0
    rest = {"disk": 2**62} if device.type == "cpu" else {"cpu": 2**62}
    names = infer_auto_device_map(module, max_memory={main: limit, **rest})
    module = dispatch_model(module, device_map=names, main_device=device, offload_dir=str(folder), force_hooks=True)
    there = [value.to(device) for value in inputs]

    def run() -> list[Any]:
        with torch.no_grad():
            return pytree.tree_leaves(module(*there))

    return run


def capped_plan(program: Program, devices: list[Device], limit: int) -> tuple[Plan, StreamProgram, int]:
    """Return the plan that fills `limit` bytes of the first device, in program order, and puts the rest on the second.
    Its stream program and its peak memory there come with it.

    Raises:
        ValueError: not even one operation fits.
    """
    allocated, names = storages(program), tuple(device.name for device in devices)
    computed = [node for node, each in enumerate(program.operations) if each.kind == "operation"]

    def lowered(count: int) -> tuple[Plan, StreamProgram, int]:
        placement = np.zeros(program.num_nodes, np.int64)
        placement[computed[count:]] = 1
        plan = Plan(names, placement)
        streams = stream_program(program, plan, devices, allocated)
        checked = check(streams)
        return plan, streams, checked.peak_bytes[devices[0].memory] + checked.resident_bytes[devices[0].memory]

    least, most = 0, len(computed) + 1  # `least` operations fit, `most` do not
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if lowered(middle)[2] <= limit else (least, middle)
    if not least:
        raise ValueError(f"no operation fits into {limit} bytes of {devices[0].memory}")
    return lowered(least)


def reports(settings: Mapping[str, Any], place: torch.device) -> Iterator[dict[str, Any]]:
    """Time a model under half of the memory that it takes: the plan alone, then compared with Accelerate.

    Args:
        settings: `blocks` and `width` of the model, rows of a `batch`, and `repetitions` of each variant.
        place: the accelerator. Memory of the CPU stands for that of an accelerator.

    Returns:
        whole_bytes; limit_bytes, half of them; plan_bytes, proven for the plan, and plan_measured_bytes, the most that
        PyTorch held on the accelerator in a run of it, with libraries' workspaces; ways, by name: median_ms, or the
        reason why one was not timed; clocks of the accelerator.
    """
    model = model_of(settings["blocks"], settings["width"])
    generator = torch.Generator().manual_seed(1)
    inputs = (torch.randn(settings["batch"], settings["width"], generator=generator),)
    program = capture_module(model, inputs)
    want = eager(program)
    kind = place.type
    name = "accelerator" if kind == "cpu" else str(place)
    devices = [Device(name, kind, (), 1, name, "capped"), Device("cpu:0", "cpu", (), 1, "host", "beside it")]
    whole = _whole_bytes(program, devices)
    limit = whole // 2
    _, streams, taken = capped_plan(program, devices, limit)
    graph = LaneGraph(LaneExecutor(program, streams, devices))
    row: dict[str, Any] = {
        "whole_bytes": whole, "limit_bytes": limit, "plan_bytes": taken,
        "plan_measured_bytes": None if kind == "cpu" else _held_bytes(graph.run, place),
        "graphs": graph.num_graphs, "graphs_reason": graph.reason,
    }  # fmt: skip

    def timed(runs: Mapping[str, Run], reasons: Mapping[str, str]) -> dict[str, Any]:
        return row | {"ways": _timed(runs, reasons, want, settings["repetitions"]), "clocks": clocks_of(place)}

    runs: dict[str, Run] = {"plan over both": graph.run}
    yield timed(runs, {})
    with tempfile.TemporaryDirectory() as folder:
        reasons = dict[str, str]()
        try:
            runs[OFFLOAD] = offloaded(model, inputs, place, limit, Path(folder))
        except Exception as error:  # it is not installed, or whatever it raises
            reasons[OFFLOAD] = first_line(error)
        yield timed(runs, reasons)


def _timed(
    runs: Mapping[str, Run], reasons: Mapping[str, str], want: list[Any], repetitions: int
) -> dict[str, dict[str, Any]]:
    """Medians of the ways whose outputs are right, timed alternately, and the reasons of the others."""
    reasons = dict(reasons)
    for way, run in runs.items():
        try:
            reasons[way] = outputs_differ(run(), want) or ""
        except Exception as error:  # memory may be short, for one
            reasons[way] = first_line(error)
    ran = measure({way: run for way, run in runs.items() if not reasons[way]}, repetitions)
    return {way: {"median_ms": ran[way].median_ms, "reason": ran[way].reason} if way in ran else
            {"median_ms": None, "reason": reason} for way, reason in reasons.items()}  # fmt: skip


def _held_bytes(run: Callable[[], object], device: torch.device) -> int:
    torch.accelerator.reset_peak_memory_stats(device)
    run()
    return int(torch.accelerator.max_memory_allocated(device))


def _whole_bytes(program: Program, devices: list[Device]) -> int:
    plan = Plan(tuple(device.name for device in devices), np.zeros(program.num_nodes, np.int64))
    checked = check(stream_program(program, plan, devices))
    return checked.peak_bytes[devices[0].memory] + checked.resident_bytes[devices[0].memory]


if __name__ == "__main__":
    print_rows(lambda device: reports(json.loads(sys.argv[1]), device))
