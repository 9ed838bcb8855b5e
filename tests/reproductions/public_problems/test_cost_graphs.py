"""Published cost graphs: read or refused in one line; latency by hand, by the published program, and by events."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.reproductions.public_problems.cost_graphs import (
    NO_OVERHEAD,
    CostGraph,
    read_cost_graph,
    read_split,
    refusal,
)
from experiments.reproductions.public_problems.published import PublishedObjective
from gst.lowering.plan import Plan
from gst.simulation.copies import peak_bytes
from gst.simulation.simulator import Simulator
from tests.files import FIXTURES

SHARED = Path(__file__).parents[4] / "shared" / "data" / "placement"
FIXTURE = FIXTURES / "cost_graphs" / "bert24_inference.json"
PUBLISHED = sorted(SHARED.glob("*_layer_graphs/*.json")) or [FIXTURE]


def record(edges: list[tuple[int, int]], transfers: dict[int, float]) -> dict[str, Any]:
    """Nodes take 10 ms on a core and 1 ms on one of two accelerators, and 100 bytes of its 1000."""
    nodes = sorted({node for edge in edges for node in edge})
    node = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1, "isBackwardNode": False, "size": 100.0}
    return {
        "maxSizePerFPGA": 1000.0, "maxFPGAs": 2, "maxCPUs": 3,
        "nodes": [{"id": number, "colorClass": number, **node} for number in reversed(nodes)],
        "edges": [{"sourceId": a, "destId": b, "cost": transfers[a]} for a, b in edges],
    }  # fmt: skip


def diamond() -> dict[str, Any]:
    """1 -> 2 -> 4 and 1 -> 3 -> 4."""
    return record([(1, 2), (1, 3), (2, 4), (3, 4)], {1: 2.0, 2: 3.0, 3: 4.0})


def read(folder: Path, content: object) -> CostGraph:
    path = folder / "made.json"
    path.write_text(json.dumps(content))
    return read_cost_graph(path)


def on(graph: CostGraph, **devices: str) -> Plan:
    """`n1="cpu:0"` and so on; c0, a1 for short."""
    names = tuple(device.name for device in graph.devices)
    long = {"c": "cpu:", "a": "accelerator:"}
    chosen = {int(key[1:]): names.index(long[value[0]] + value[1:]) for key, value in devices.items()}
    return Plan(names, np.array([chosen[int(node)] for node in graph.ids], np.int64))


def latency(graph: CostGraph, plan: Plan) -> float:
    return float(PublishedObjective(graph)([plan])[0])


def event_ms(graph: CostGraph, plan: Plan) -> float:
    return Simulator(graph.costs(), NO_OVERHEAD).run(plan).makespan_us / 1e3


@pytest.mark.parametrize(
    ("placed", "published", "by_events"),
    [
        # Cores are never short: 2 and 3 run side by side, also where both name cpu:0; there events take turns.
        (("c0", "c0", "c1", "c0"), 30, 30),
        (("c0", "c0", "c0", "c0"), 30, 40),
        # One call that moves nothing.
        (("a0", "a0", "a0", "a0"), 4, 4),
        # A call that reads the value of 1 once (2 ms): 10 + 2 + 3 x 1.
        (("c0", "a0", "a0", "a0"), 15, 15),
        # 1 ends at 10, the call of 2 at 10 + 2 + 1 + 3 = 16; 3 ends at 20, 4 at 30.
        (("c0", "a0", "c0", "c0"), 30, 30),
        # Two calls of one accelerator: 1 writes at 1 + 2, 2 and 3 end at 13, then 3 + 4 are read and 4 computed. By
        # events both values come at the same time, the later at 13 + 4.
        (("a0", "c0", "c1", "a0"), 21, 18),
        # The first call ends at 1 + 1 + 2 + 3, the second reads 2 + 3 and computes two. By events 3 starts when 1 is
        # there, 1 + 2 x 2, and 4 when 2 is: max(6, 2 + 2 x 3).
        (("a0", "a0", "a1", "a1"), 14, 9),
        # The path 1 -> 3 -> 4 comes back to the accelerator, so 4 is a call of its own and 2 is written and read
        # again: 7, then 7 + 2 + 1 + 4, then 14 + 3 + 4 + 1. By events 1 + 4 + 1 + 8 + 1.
        (("a0", "a0", "a1", "a0"), 22, 15),
    ],
)
def test_latency_by_hand(tmp_path: Path, placed: tuple[str, ...], published: float, by_events: float) -> None:
    graph = read(tmp_path, diamond())
    plan = on(graph, **{f"n{node}": device for node, device in enumerate(placed, start=1)})
    assert latency(graph, plan) == pytest.approx(published)
    assert event_ms(graph, plan) == pytest.approx(by_events, abs=1e-3)


@pytest.mark.skipif(not SHARED.exists(), reason="needs the published graphs in shared/data/placement")
@pytest.mark.parametrize(
    ("name", "milliseconds"), [("bert24", 92.426), ("gnmt", 182.674), ("inceptionv3", 311.524), ("resnet50", 202.263)]
)
def test_human_experts_as_the_published_program_has_them(name: str, milliseconds: float) -> None:
    """What `greedy -computeLatency` of the source prints for these files."""
    graph = read_cost_graph(SHARED / "throughput_layer_graphs" / f"{name}_inference.json")
    plan = read_split(SHARED / "human_experts" / f"{name}_inference_expert.json", graph)
    assert latency(graph, plan) == pytest.approx(milliseconds, abs=6e-4)


def test_a_published_graph_as_the_published_program_has_it() -> None:
    """Ten layers each on two accelerators, the rest on the CPU: 407.046 is what `greedy -computeLatency` prints."""
    graph = read_cost_graph(FIXTURE)
    names = tuple(device.name for device in graph.devices)
    placement = np.select([graph.ids <= 10, graph.ids <= 20], [8, 9], 0)
    assert latency(graph, Plan(names, placement)) == pytest.approx(407.046, abs=6e-4)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_published_graphs(path: Path) -> None:
    """Topological order, costs where the file has them, and each plan of one device takes the sum of its times."""
    graph, source = read_cost_graph(path), json.loads(path.read_text())
    nodes = {node["id"]: node for node in source["nodes"]}
    assert (graph.edges[0] < graph.edges[1]).all() and sorted(nodes) == sorted(graph.ids)
    assert [nodes[node]["cpuLatency"] for node in graph.ids] == graph.cpu_ms.tolist()
    edges = {(graph.ids[a], graph.ids[b]): graph.transfer_ms[a] for a, b in graph.edges.T}
    assert edges == {(each["sourceId"], each["destId"]): each["cost"] for each in source["edges"]}
    costs = graph.costs()
    for device, times in ((0, graph.cpu_ms), (graph.num_cores, graph.accelerator_ms)):
        alone = Plan((costs.devices[device].name,), np.zeros(graph.num_nodes, np.int64))
        assert event_ms(graph, alone) == pytest.approx(times.sum())
    simulation = Simulator(costs, NO_OVERHEAD).run(Plan(("cpu:0",), np.zeros(graph.num_nodes, np.int64)))
    assert max(costs.output_bytes) <= peak_bytes(costs, simulation)["host"] <= costs.output_bytes.sum()


def test_plans_that_the_cost_model_does_not_admit(tmp_path: Path) -> None:
    content = diamond()
    content["nodes"][0].update(supportedOnFpga=0)  # node 4
    content["nodes"][1].update(colorClass=2)  # nodes 3 and 2
    content["maxSizePerFPGA"] = 250
    graph = read(tmp_path, content)
    assert refusal(graph, on(graph, n1="c0", n2="a1", n3="a1", n4="c2")) is None
    cases = (
        (on(graph, n1="c0", n2="c0", n3="c0", n4="a0"), "node 4 cannot run"),
        (on(graph, n1="c0", n2="a0", n3="a1", n4="c0"), "nodes [23] and [23] belong"),
        (on(graph, n1="a0", n2="a0", n3="a0", n4="c0"), "accelerator:0 needs 300 bytes of 250"),
        (Plan(("accelerator:7",), np.zeros(4, np.int64)), "uses accelerator:7; made has cpu:0..2 and accelerator:0..1"),
        (Plan(("cpu:0",), np.zeros(3, np.int64)), "places 3 nodes, made has 4"),
    )
    for plan, complaint in cases:
        assert re.search(complaint, refusal(graph, plan) or "")
    assert all(np.isnan(latency(graph, plan)) for plan, _ in cases[:3])
    content["nodes"][2]["isBackwardNode"] = 1
    with pytest.raises(ValueError, match="backward pass"):
        backward = read(tmp_path, content)
        latency(backward, on(backward, n1="c0", n2="c0", n3="c0", n4="c0"))


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = diamond()
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (changed(lambda c: c["edges"].append({"sourceId": 4, "destId": 1, "cost": 1.0})), "node [1-4] .* cycle"),
        (changed(lambda c: c["edges"].append({"sourceId": 2, "destId": 2, "cost": 3.0})), "node 2 .* cycle"),
        (changed(lambda c: c["nodes"].append({**c["nodes"][0], "id": 9, "colorClass": 9})), "joins node [19]"),
        (changed(lambda c: c["nodes"].append(c["nodes"][0])), "node 4 is there twice"),
        (changed(lambda c: c["nodes"][0].pop("fpgaLatency")), "node 4: fpgaLatency is missing"),
        (changed(lambda c: c["nodes"][1].update(cpuLatency=-1)), "node 3: cpuLatency is -1, want a number >= 0"),
        (changed(lambda c: c["nodes"][1].update(cpuLatency=float("nan"))), "node 3: cpuLatency is nan"),
        (changed(lambda c: c["nodes"][1].update(size="big")), "node 3: size is 'big'"),
        (changed(lambda c: c["nodes"][1].update(id=1.5)), "id is 1.5, want a whole number"),
        (changed(lambda c: c["edges"][0].update(cost=-2.0)), "the edge from 1 to 2: cost is -2.0"),
        (changed(lambda c: c["edges"][0].pop("cost")), "the edge from 1 to 2: cost is missing"),
        (changed(lambda c: c["edges"][0].update(cost=5.0)), r"node 1: its edges cost 5.0 and 2.0"),
        (changed(lambda c: c["edges"][0].update(destId=8)), "there is no node 8"),
        (changed(lambda c: c.pop("maxFPGAs")), "the file: maxFPGAs is missing"),
        (changed(lambda c: c.update(nodes=[])), "'nodes' is no list of objects"),
        ([1, 2], "holds a list"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, content: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "made.json")) and "\n" not in str(caught.value)


def test_splits_of_another_graph_are_refused(tmp_path: Path) -> None:
    graph, path = read(tmp_path, diamond()), tmp_path / "split.json"
    for groups, complaint in (([[1, 2], [3]], "node 4 of made is not placed"), ([[1], [1]], "node 1 is placed twice"),
                              ([[1, 2], [3, 4, 5]], "node 5 is not in made")):  # fmt: skip
        path.write_text(json.dumps({"cpus": [{"nodes": []}], "fpgas": [{"nodes": each} for each in groups]}))
        with pytest.raises(ValueError, match=complaint):
            read_split(path, graph)
    path.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_split(path, graph)
