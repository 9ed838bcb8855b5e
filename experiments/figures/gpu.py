"""Runs on a GPU: tables from experiments/results/gpu, one NVIDIA H200, 26 November 2026."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from experiments.figures.documents import Number, result, table

PAGE = "docs/results.md"
STREAMS = {
    "as written": "eager", "as written, graph": "step in a CUDA graph", "1 lanes, graph": "plan, 1 stream",
    "2 lanes, graph": "2 streams", "4 lanes, graph": "4 streams",
}  # fmt: skip
VARIANTS = {
    "unshared fp32": "every state computed, fp32", "shared fp32": "equal states once, fp32",
    "shared bf16": "equal states once, bf16",
}  # fmt: skip
CALLS = ("replays", "copies", "clones", "waits")
FUSED = {
    "compiled_ms": "torch.compile", "reduce-overhead_ms": "reduce-overhead",
    "compiled_graph_ms": "compiled step in a CUDA graph", "fused_1_lanes_ms": "1 stream", "fused_2_lanes_ms": "2",
    "fused_4_lanes_ms": "4", "fused_8_lanes_ms": "8",
}  # fmt: skip

HOST_PARTS = ("draw", "read", "count rows", "equal states", "fill", "finish")


def streams() -> str:
    """Return the table of plans on several streams of one GPU."""
    rows = [
        [name, f"{found['nodes']:,}", *(_milliseconds(found["ways"].get(key)) for key in STREAMS),
         f"{_gain(found):.2f}x"]
        for name, found in _programs().items()
    ]  # fmt: skip
    return table(["ms", "operations", *STREAMS.values(), "CUDA graph / 4 streams"], rows)


def step() -> str:
    """Return the table of a training step of the published network."""
    found = result("gpu/h200_make_gpu")["gst"]
    variants, recorded = found["step"]["variants"], found["recorded"]
    rows = [
        *([name, f"{variants[key]['step_ms']:.1f}", f"{variants[key]['peak_mib']:,.0f}"]
          for key, name in VARIANTS.items()),
        ["GraphSAGE, eager", f"{recorded['eager_ms']:.1f}", ""],
        ["the same, recorded", f"{recorded['recorded_ms']:.1f}", ""],
    ]  # fmt: skip
    return table(["training step", "ms", "peak MiB"], rows)


def place() -> str:
    """Return the table of `gst place inception` on four streams."""
    found = result("gpu/h200_place_inception")
    rows = [
        [f"`{name}`", f"{each['median_ms']:.2f}" if each["median_ms"] else "-", each["reason"]]
        for name, each in found["plans"].items()
    ]
    return table(["plan", "median ms, first set of runs", ""], rows)


def fused() -> str:
    """Return the table of a prototype that puts Inductor's kernels on several streams.

    Cells are of the latest run; an earlier run fills cells that the latest lacks.
    """
    rows: dict[str, dict[str, Any]] = {}
    for each in result("gpu/h200_fused_lanes")["rows"]:
        rows[each["program"]] = rows.get(each["program"], {}) | each
    head = ["ms", *FUSED.values()]
    return table(head, [[name.replace(":", ": "), *(f"{each[key]:.2f}" if key in each else "-" for key in FUSED)]
                        for name, each in rows.items()])  # fmt: skip


def calls() -> str:
    """Return the table of calls of a step, and of its schedules in simulation beside those of the prototype."""
    head = ["step in place", "kernels on CPU / H200", "graphs", "copies", "clones", "waits", "memory",
            "ms on 1", *(f"on {count}, simulated / H200" for count in (2, 4, 8))]  # fmt: skip
    rows = []
    for name, found in result("kernel_calls")["programs"].items():
        there = found["h200"]
        streams = list(there["streams"].values())
        rows.append([
            name.replace(":", ": "), f"{found['kernels']} / {there['kernels']}", *(str(found[key]) for key in CALLS),
            f"{max(each['memory'] for each in streams):.2f}x", f"{streams[0]['measured_ms']:.2f}",
            *(f"{each['simulated_ms']:.2f} / {each['measured_ms']:.2f}" for each in streams[1:]),
        ])  # fmt: skip
    return table(head, rows)


def on_cpu() -> str:
    """Return the table of training steps on two CPU cores, whose kernels run one after the other in place."""
    head = ["training step on two CPU cores, ms", "kernels", "torch.compile", "kernels in place", "gain"]
    rows = []
    for name, found in result("kernels_cpu")["programs"].items():
        compiled, ours = found["ways"]["compiled, default"], found["ways"]["kernels on streams"]
        rows.append([name, str(found["kernels"]), f"{compiled:.1f}", f"{ours:.1f}", f"{compiled / ours:.2f}x"])
    return table(head, rows)


def step_calls() -> str:
    """Return the table of operators, copies and waits of a training step."""
    rows = []
    for name, found in result("step_calls")["cases"].items():
        parts = [each for part, each in found.items() if part != "places_of_waits"]
        copies, waits = (str(sum(each[key] for each in parts)) for key in ("copies", "waits"))
        recorded = found.get("recorded", {}).get("operators", 0)
        launched = sum(each["operators"] for each in parts) - recorded
        rows.append([name, str(launched), f"{recorded:,}" if recorded else "-", copies, waits])
    return table(["step", "operators", "operators of the graph", "copies", "waits"], rows)


def host_work() -> str:
    """Return the table of the host's milliseconds in a step."""
    rows = [
        [f"{name}, {'padded' if kind == 'padded' else 'eager, rows found on the host'}",
         *(f"{parts[part]:.2f}" if part in parts else "-" for part in HOST_PARTS)]
        for name, found in result("host_work")["cases"].items() for kind, parts in found.items()
    ]  # fmt: skip
    return table(["ms", *HOST_PARTS], rows)


def _before() -> tuple[float, ...]:
    """Return time, memory, and the number of processes of steps by older packages, over those of now."""
    now, before = (result("host_work")["whole_steps"][name] for name in ("now", "before"))
    ratios = [statistics.median(before[key]) / statistics.median(now[key]) for key in ("step_ms_min", "peak_mib")]
    return *ratios, len(now["peak_mib"])


def padding() -> str:
    """Return the table of rows of padded steps on real programs."""
    rows = [
        [f"{row['program']}, {row['configs']} configurations", *(f"{row[key]:,.0f}" for key in ("needed", "padded")),
         f"{row['padded'] / row['needed']:.2f}x", f"{row['most']:,.0f}", f"{row['every_state']:,.0f}",
         f"{row['too_large']} of {row['steps']}"]
        for row in result("padding")["rows"]
    ]  # fmt: skip
    return table(
        ["rows of a step", "needed", "padded", "", "so that none is larger", "each state one", "steps that are larger"],
        rows,
    )


def _programs() -> dict[str, Any]:
    found = result("gpu/h200_make_gpu")["workloads"]
    return {"gpt": found["gpt"], "inception": result("gpu/h200_inception_lanes")}


def _gain(found: dict[str, Any]) -> float:
    graph, four = (found["ways"][name]["median_ms"] for name in ("as written, graph", "4 lanes, graph"))
    return float(graph / four)


def _milliseconds(run: dict[str, Any] | None) -> str:
    return f"{run['median_ms']:.2f}" if run else "-"


def gains() -> list[float]:
    """Return the gain of four streams over a CUDA graph of the step: gpt, inception."""
    return [_gain(found) for found in _programs().values()]


def _offload() -> list[float]:
    found = result("gpu/h200_make_gpu")["capped"]["ways"]
    plan, theirs = (found[name]["median_ms"] for name in ("plan over both", "Accelerate, offload"))
    return [plan, theirs, theirs / plan]


def _place() -> list[float]:
    found = result("gpu/h200_place_inception")
    return [found["pytorch_ms"], found["objective"], found["winner_ms"]]


def _tests() -> list[float]:
    outcomes = Counter(each["outcome"] for each in result("gpu/h200_make_gpu")["tests"]["outcomes"].values())
    return [outcomes["passed"], outcomes["failed"], outcomes["unfinished"]]


TABLES = {
    "gpu streams": streams,
    "gpu step": step,
    "gpu place": place,
    "gpu fused kernels": fused,
    "calls of a step": calls,
    "kernels on cpu": on_cpu,
    "calls of a training step": step_calls,
    "work of the host": host_work,
    "padding": padding,
}
NUMBERS: list[Number] = [
    ("docs/performance.md", "takes {:.2f} times as long and {:.2f} times the memory, medians of {:.0f} processes each",
     _before),
    (PAGE, "takes {:.1f} ms by a plan over GPU and CPU and {:.1f} ms by Accelerate's offload ({:.2f} times as long)",
     _offload),
    (PAGE, "eager takes {:.2f} ms, the best plan {:.2f} ms and the winner, one graph, {:.2f} ms", _place),
    (PAGE, "{:.0f} tests passed, {:.0f} failed, and {:.0f} did not end", _tests),
]  # fmt: skip
