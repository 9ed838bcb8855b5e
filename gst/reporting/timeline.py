"""The section that shows the best plan as a timeline: simulated, one lane for each device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gst.reporting.charts import NUM_COLOURS, brief, escape, number, whole
from gst.reporting.lanes import Bars, busy_ms, lanes, swatch
from gst.reporting.page import empty, legend, rows, section, wide_figure
from gst.reporting.record import Record, best_of, device_names, mapping, runtime_of, time_of

MOST_DEVICES = 64


def timeline(record: Record) -> str:
    """Lanes, and the share of the run that each device and each kind of operation is at work."""
    title = "Where the time of the best plan goes, simulated"
    kinds, bars = _bars(mapping(record.get("timeline")))
    if not len(bars.device) or not bars.span_ms:
        return section("timeline", title, empty("The record holds no timeline of the best plan."))
    every = device_names(record, bars.device.tolist())
    names = dict(sorted(every.items())[:MOST_DEVICES])
    used = np.unique(bars.kind).tolist()
    shares = {index: busy_ms(bars.of(bars.device == index)) / bars.span_ms for index in names}
    over = [(index, f"{name[:60]}: busy {100 * shares[index]:.0f} %") for index, name in names.items()]
    ranked = Bars(bars.device, bars.begin_ms, bars.end_ms, np.searchsorted(used, bars.kind))
    svg = lanes(ranked, over, used, f"What each of {len(over)} devices does in {brief(bars.span_ms)} simulated ms")
    shapes = legend((f"c{kind % NUM_COLOURS}", swatch(at, used), kinds[kind]) for at, kind in enumerate(used))
    table = _device_table(bars, names) + _kind_table(bars, kinds, used)
    told = f"<p>{_told(record, bars)}{_left_out(len(every))}</p>"
    return section("timeline", title, told, wide_figure("Lanes of the devices", svg, _caption(names), table, shapes))


def _bars(drawn: Record) -> tuple[list[str], Bars]:
    """Names of the kinds, and the bars that are four numbers, are of a kind and do not end before they begin."""
    listed = drawn.get("kinds")
    kinds = [str(kind) for kind in listed] if isinstance(listed, list | tuple) else []
    given = drawn.get("bars")
    good = [list(map(number, entry)) for entry in given if _is_bar(entry)] if isinstance(given, list | tuple) else []
    table = np.array(good, np.float64).reshape(-1, 4)
    device, begin, end, kind = table[np.isfinite(table).all(1)].T
    right = (device >= 0) & (device < 2**31) & (begin >= 0) & (end >= begin) & (kind >= 0) & (kind < len(kinds))
    whole_numbers = [column[right].astype(np.int64) for column in (device, kind)]
    return kinds, Bars(whole_numbers[0], begin[right], end[right], whole_numbers[1])


def _is_bar(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 4


def _told(record: Record, bars: Bars) -> str:
    judged, runtime = time_of(best_of(record)), runtime_of(record)
    words = f"This is how the simulator expects the plan {record.get('best') or 'found'} to run, from the costs of its "
    words += f"operations; nothing here was measured. It takes {brief(bars.span_ms)} ms"
    if runtime == "measured" and judged == judged:
        words += f", the real runs {brief(judged)} ms (median)"
    if runtime == "published" and judged == judged:
        words += f"; the published latency, which is another sum over the same costs, is {brief(judged)} ms"
    return escape(words + ". Where a lane is empty, its device waits.", 1000)


def _caption(names: dict[int, str]) -> str:
    words = (
        "Colour and height of a bar tell its kind. Operations narrower than half a pixel are drawn together, in "
        "proportion to their times; thin lines set long ones apart."
    )
    if any(re.fullmatch(r"cpu:\d+-\d+", name) for name in names.values()):
        words += " A set of cores such as cpu:0-1 is a device too: while it works, the lanes of its cores are empty."
    return words


def _left_out(num_devices: int) -> str:
    return "" if num_devices <= MOST_DEVICES else f" The first {MOST_DEVICES} of {num_devices:,} devices are shown."


def _device_table(bars: Bars, names: dict[int, str]) -> str:
    lines = []
    for index, name in names.items():
        own = bars.of(bars.device == index)
        busy = busy_ms(own)
        lines.append((name, whole(len(own.kind)), brief(busy), f"{100 * busy / bars.span_ms:.1f} %"))
    return rows("Devices", ("device", "operations", "busy ms", "share of the run"), lines)


def _kind_table(bars: Bars, kinds: Sequence[str], used: Sequence[int]) -> str:
    took = {kind: sum(busy_ms(own) for own in _on_devices(bars.of(bars.kind == kind))) for kind in used}
    total = sum(took.values()) or 1.0
    lines = [
        (kinds[kind], whole((bars.kind == kind).sum()), brief(took[kind]), f"{100 * took[kind] / total:.1f} %")
        for kind in used
    ]
    return rows("Kinds of operations", ("kind", "operations", "busy ms", "share of all work"), lines)


def _on_devices(bars: Bars) -> list[Bars]:
    return [bars.of(bars.device == index) for index in np.unique(bars.device)]
