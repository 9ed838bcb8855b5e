"""The section that says where the numbers come from: machine, devices, command, and how they were got."""

from __future__ import annotations

from gst.reporting.charts import brief, escape
from gst.reporting.page import definitions, empty, pair, rows, section
from gst.reporting.record import Record, device_names, mapping, runtime_of

HOW = {
    "measured": (
        "How it was measured",
        "Operations were profiled on each device. From these costs the simulator judged the plans of all baselines "
        "and methods; simulated times and the timeline come from it. The search then measured the most promising "
        "plans and a few uncertain ones for real, after writing down what it expected of each. At the end the plan of"
        " the search, those of all baselines and methods, and plain PyTorch (in a process of its own, all threads, "
        "nothing changed) ran again in turns: the headline uses those runs alone, the median of each and its 95 % "
        "bootstrap interval. Measured times are wall-clock times of one step, run for real on these devices. They "
        "hold for this program on this machine; another machine needs its own run.",
    ),
    "simulated": (
        "How it was computed",
        "No plan was run. Every time on this page comes from a simulator of the devices, which starts each operation "
        "when its device is free and its inputs have arrived; operations and transfers take what the costs say. The "
        "lower bound is what no plan can beat by the same costs. A real machine has other times, and may put the "
        "plans in another order: measure before you rely on them.",
    ),
    "published": (
        "How it was computed",
        "No plan was run. Plans were judged by the latency objective that was published with this cost graph, "
        "computed from its own costs; the timeline alone comes from our simulator. The lower bound is what no plan "
        "can beat by that objective. The devices are those of the cost graph.",
    ),
}


def setting(record: Record) -> str:
    """Machine, devices, command and method, in words that hold for the runtime of the record."""
    measured = runtime_of(record) == "measured"
    machine = {**mapping(record.get("machine")), "seconds in all": brief(record.get("seconds"))}
    facts = definitions(machine.items())
    title, words = HOW[runtime_of(record)]
    where = "Machine" if measured else "Machine that computed this"
    return section(
        "setting",
        "Machine, devices, command",
        pair(
            f"<div><h3>{where}</h3>{facts}</div>",
            f"<div><h3>{'Devices' if measured else 'Devices of the costs'}</h3>{_devices(record)}</div>",
        ),
        f"<h3>Command</h3><pre><code>{escape(record.get('command') or 'not recorded', 4000)}</code></pre>",
        f"<h3>{title}</h3><p>{words}</p>",
    )


def _devices(record: Record) -> str:
    names = device_names(record)
    if not names:
        return empty("No devices were recorded.")
    told = [mapping(entry).get("description", "") for entry in record["devices"]]
    return rows("Devices", ("device", "what it is"), zip(names.values(), told, strict=True), words=2)
