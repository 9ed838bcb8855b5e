"""Plans handed to other libraries are read by these as what they are."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from gst.lowering.plan import Plan
from gst.machine.devices import Device
from gst.placement.api.placed import Placed
from gst.placement.api.plan_trace import trace_of_task
from gst.programs import capture_module
from tests.placement.random_tasks import random_task


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)
        self.second = nn.ModuleDict({"wide": nn.Linear(8, 8), "last": nn.Linear(8, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return self.second["last"](self.second["wide"](x).relu())


def placed(where: dict[str, int], kind: str = "cpu") -> Placed:
    """The tower on two devices: each operation where the module runs whose parameters it reads, other operations where
    the ones before them run; parameters themselves, which lie where they are read, are said to be on the first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tower().eval().requires_grad_(False)
    program = capture_module(model, (torch.linspace(-1, 1, 24).reshape(4, 6),))
    inputs = program.inputs[-1:]
    devices = tuple(Device(f"{kind}:{n}", kind, (n,), 1, "host", "made") for n in range(2))  # type: ignore[arg-type]
    parameters = dict(model.named_parameters())
    names, placement, here = list(parameters), np.zeros(program.num_nodes, np.int64), 0
    for node, operation in enumerate(program.operations):
        if operation.kind == "operation":
            homes = [program.parameter_home[each] for each in operation.producers]
            mine = [names[home].rpartition(".")[0] for home in homes if 0 <= home < len(names)]
            if program.parameter_home[node] < 0:
                here = where[mine[0]] if mine else here
                placement[node] = here
    plan = Plan(tuple(device.name for device in devices), placement)
    return Placed(model, inputs, devices, {"winner": "plan"}, {}, parameters, program, plan)


HALVES = {"first.0": 0, "norm": 0, "second.wide": 1, "second.last": 1}


def test_accelerate_reads_the_device_map() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs the extra 'dev'")
    several = placed(HALVES, "cuda")
    assert several.device_map() == {name: f"cuda:{device}" for name, device in HALVES.items()}
    accelerate.utils.check_device_map(several.model, several.device_map())
    less = {name: device for name, device in several.device_map().items() if name != "second.last"}
    with pytest.raises(ValueError, match=r"second\.last"):
        accelerate.utils.check_device_map(several.model, less)
    here = placed(HALVES)
    want = here.model(*here.inputs)
    dispatched = accelerate.dispatch_model(here.model, here.device_map(), force_hooks=True)
    assert dispatched.hf_device_map == here.device_map()
    torch.testing.assert_close(dispatched(*here.inputs), want)


def check_trace(trace: dict, edges: list[tuple[str, str]]) -> None:
    """The laws of the Trace Event Format, and those of a run: no operation begins before what it reads is there."""
    events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    complete = {event["name"]: event for event in events if event["ph"] == "X"}
    for event in complete.values():
        assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        assert all(first[1] <= second[0] * (1 + 1e-9) for first, second in pairwise(sorted(spans))), "one at a time"
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert set(rows) <= named
    opened = {event["id"]: event for event in events if event["ph"] == "b"}
    closed = {event["id"]: event for event in events if event["ph"] == "e"}
    assert opened.keys() == closed.keys() and len(opened) + len(closed) == sum(e["ph"] in "be" for e in events)
    arrives: dict[tuple[str, int], float] = {}
    for number, event in opened.items():
        assert closed[number]["ts"] > event["ts"] and closed[number]["name"] == event["name"]
        source = event["name"].partition(" to ")[0]
        assert event["ts"] == pytest.approx(complete[source]["ts"] + complete[source]["dur"])
        arrives[source, event["args"]["target"]] = closed[number]["ts"]
    for producer, consumer in edges:
        one, other = complete[producer], complete[consumer]
        there = arrives.get((producer, other["tid"]))
        assert (there is None) == (one["tid"] == other["tid"]), "what changes device moves once"
        assert other["ts"] * (1 + 1e-9) >= (one["ts"] + one["dur"] if there is None else there)


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_obeys_the_laws_of_its_format_and_of_runs(seed: int) -> None:
    task = random_task(seed)
    generator = np.random.default_rng(seed)
    plan = task.plan(np.array([generator.choice(np.flatnonzero(column)) for column in np.isfinite(task.times_us).T]))
    check_trace(trace_of_task(task, plan), [(f"node {a}", f"node {b}") for a, b in task.costs.edges.T.tolist()])
