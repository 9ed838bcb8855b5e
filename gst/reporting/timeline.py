"""Simulated timeline of the best plan: a lane for each device.

A lane is a row of cells. Each shows one kind of operation or none; the rest of its time is carried to the next cell
(error diffusion: Floyd and Steinberg, Proceedings of the SID 17, 1976), so that ink is in proportion to time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from gst.reporting.charts import NUM_COLOURS, Axis, brief, drawing, escape, number, text, whole
from gst.reporting.headline import again, best_of, device_names, runtime_of, time_of
from gst.reporting.page import Record, legend, listed, mapping, rows, section, wide_figure

MOST_DEVICES = 64
WIDTH, LEFT, RIGHT = 960.0, 8.0, 948.0
CELL = 0.5  # pixels
MOST_CELLS = 12_000  # of all lanes; more lanes have wider cells
WIDE = 6  # cells; thin lines separate operations that are wider
IDLE = -1

Times = Float64[np.ndarray, " bars"]


def timeline(record: Record) -> str:
    """Return the lanes, and the share of the run that each device and each kind of operation takes."""
    title = "Where the time of the best plan goes, simulated"
    kinds, bars = _bars(mapping(record.get("timeline")))
    if not len(bars.device) or not bars.span_ms:
        return ""
    every = device_names(record, bars.device.tolist())
    names = dict(sorted(every.items())[:MOST_DEVICES])
    used = np.unique(bars.kind).tolist()
    shares = {index: busy_ms(bars.of(bars.device == index)) / bars.span_ms for index in names}
    over = [(index, f"{name[:60]}: busy {100 * shares[index]:.0f} %") for index, name in names.items()]
    ranked = Bars(bars.device, bars.begin_ms, bars.end_ms, np.searchsorted(used, bars.kind))
    svg = lanes(ranked, over, used, f"What each of {len(over)} devices does in {brief(bars.span_ms)} simulated ms")
    shapes = legend((f"c{kind % NUM_COLOURS}", swatch(at, used), kinds[kind]) for at, kind in enumerate(used))
    table = _device_table(bars, names) + _kind_table(bars, kinds, used)
    more = f" The first {MOST_DEVICES} of {len(every):,} devices are shown." if len(every) > MOST_DEVICES else ""
    told = f"<p>{_told(record, bars)}{more}</p>"
    return section("timeline", title, told, wide_figure("Lanes of the devices", svg, _caption(names), table, shapes))


def _bars(drawn: Record) -> tuple[list[str], Bars]:
    """Return the names of the kinds and the valid bars: four numbers, a known kind, no end before the beginning."""
    kinds = [str(kind) for kind in listed(drawn.get("kinds"))]
    good = [list(map(number, entry)) for entry in listed(drawn.get("bars")) if len(listed(entry)) == 4]
    table = np.array(good, np.float64).reshape(-1, 4)
    device, begin, end, kind = table[np.isfinite(table).all(1)].T
    right = (device >= 0) & (device < 2**31) & (begin >= 0) & (end >= begin) & (kind >= 0) & (kind < len(kinds))
    whole_numbers = [column[right].astype(np.int64) for column in (device, kind)]
    return kinds, Bars(whole_numbers[0], begin[right], end[right], whole_numbers[1])


def _told(record: Record, bars: Bars) -> str:
    judged, runtime = time_of(again(best_of(record))), runtime_of(record)
    words = f"This is how the simulator expects the plan {record.get('best') or 'found'} to run, from the costs of its "
    words += f"operations; nothing here was measured. It takes {brief(bars.span_ms)} ms"
    if runtime == "measured" and judged == judged:
        words += f", the real runs {brief(judged)} ms (median)"
    return escape(words + ". Where a lane is empty, its device waits.", 1000)


def _caption(names: dict[int, str]) -> str:
    words = (
        "Colour and height of a bar tell its kind. Operations narrower than half a pixel are drawn together, in "
        "proportion to their times; thin lines set long ones apart."
    )
    if any(re.fullmatch(r"cpu:\d+-\d+", name) for name in names.values()):
        words += " A set of cores such as cpu:0-1 is a device too: while it works, the lanes of its cores are empty."
    return words


def _device_table(bars: Bars, names: dict[int, str]) -> str:
    lines = []
    for index, name in names.items():
        own = bars.of(bars.device == index)
        busy = busy_ms(own)
        lines.append((name, whole(len(own.kind)), brief(busy), f"{100 * busy / bars.span_ms:.1f} %"))
    return rows("Devices", ("device", "operations", "busy ms", "share of the run"), lines)


def _kind_table(bars: Bars, kinds: Sequence[str], used: Sequence[int]) -> str:
    devices = np.unique(bars.device).tolist()
    of_kind = {kind: bars.of(bars.kind == kind) for kind in used}
    took = {kind: sum(busy_ms(own.of(own.device == index)) for index in devices) for kind, own in of_kind.items()}
    total = sum(took.values()) or 1.0
    lines = []
    for kind, own in of_kind.items():
        lines.append((kinds[kind], whole(len(own.kind)), brief(took[kind]), f"{100 * took[kind] / total:.1f} %"))
    return rows("Kinds of operations", ("kind", "operations", "busy ms", "share of all work"), lines)


@dataclass(frozen=True, eq=False)
class Bars:
    """Runs of operations on devices, with indices of device and kind; bars of one device may overlap (fused ones)."""

    device: Int64[np.ndarray, " bars"]
    begin_ms: Times
    end_ms: Times
    kind: Int64[np.ndarray, " bars"]

    def of(self, chosen: np.ndarray) -> Bars:
        """Return the bars that a mask or an index chooses."""
        return Bars(self.device[chosen], self.begin_ms[chosen], self.end_ms[chosen], self.kind[chosen])

    @property
    def span_ms(self) -> float:
        """End of the last bar."""
        return float(self.end_ms.max(initial=0.0))


def busy_ms(bars: Bars) -> float:
    """Return the time during which at least one bar runs."""
    order = np.argsort(bars.begin_ms, kind="stable")
    begin, end = bars.begin_ms[order], np.maximum.accumulate(bars.end_ms[order])
    before = np.r_[-np.inf, end[:-1]]
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())


def coverage(begin: Times, end: Times, edges: Float64[np.ndarray, " edges"]) -> Float64[np.ndarray, " cells"]:
    """Return the share of each cell between two `edges` that the bars cover; bars that overlap count twice."""

    def before(times: Times) -> Float64[np.ndarray, " edges"]:
        ordered = np.sort(times)
        sums = np.r_[0.0, np.cumsum(ordered)]
        count = np.searchsorted(ordered, edges)
        return count * edges - sums[count]

    return np.diff(before(begin) - before(end)) / np.diff(edges)


def cells_of(bars: Bars, num_kinds: int, edges: Float64[np.ndarray, " edges"]) -> Int64[np.ndarray, " cells"]:
    """Return the kind that each cell of a lane shows, `IDLE` for none; work too short for a cell gets one."""
    owns = [bars.kind == kind for kind in range(num_kinds)]
    cover = np.array([coverage(bars.begin_ms[own], bars.end_ms[own], edges) for own in owns])
    cover /= np.maximum(cover.sum(0), 1.0)
    busy = cover.sum(0) > 1e-9
    shown = np.full(len(edges) - 1, IDLE, np.int64)
    bounds = np.flatnonzero(np.diff(np.r_[False, busy, False].astype(np.int64)))
    for first, last in bounds.reshape(-1, 2).tolist():
        owed = np.zeros(num_kinds)
        for cell in range(first, last):
            owed += cover[:, cell]
            if owed.sum() >= 0.5:
                shown[cell] = owed.argmax()
                owed[shown[cell]] -= 1
        if (shown[first:last] == IDLE).all():
            cell = first + int(cover[:, first:last].sum(0).argmax())
            shown[cell] = cover[:, cell].argmax()
    return shown


def lanes(bars: Bars, names: Sequence[tuple[int, str]], kinds: Sequence[int], label: str) -> str:
    """Draw a lane for each (device, heading of the lane). Kinds differ in colour and height, see `height`."""
    tall = 30.0 if len(names) <= 8 else 16.0
    pitch = tall + 30
    bottom = pitch * len(names) + 4
    x = Axis(0.0, bars.span_ms, LEFT, RIGHT)
    cell = max(CELL, (RIGHT - LEFT) * len(names) / MOST_CELLS)
    num_cells = round((RIGHT - LEFT) / cell)
    edges = np.linspace(0.0, bars.span_ms, num_cells + 1)
    out = []
    for row, (device, words) in enumerate(names):
        base = pitch * row + 20 + tall
        out.append(text(LEFT, base - tall - 6, words, "start", size=14))
        out.append(f'<path class="lane" d="M{LEFT:g} {base - tall:g}H{RIGHT:g}v{tall:g}H{LEFT:g}z"/>')
        own = bars.of(bars.device == device)
        shown = cells_of(own, len(kinds), edges)
        for kind in np.unique(shown[shown != IDLE]).tolist():
            high = tall * height(kind, kinds)
            look = f'class="bars c{kinds[kind] % NUM_COLOURS}" stroke-width="{high:.3g}"'
            out.append(f'<path {look} d="{_runs(shown == kind, base - high / 2)}"/>')
        wide = own.of(own.end_ms - own.begin_ms > WIDE * bars.span_ms / num_cells)
        marks = "".join(f"M{x(at)} {base:g}v-{tall:g}" for at in wide.begin_ms.tolist())
        out.append(f'<path class="apart" d="{marks}"/>')
    for tick in x.ticks():
        out.append(f'<path class="grid" d="M{x(tick)} {bottom}v6"/>')
        out.append(text(min(x(tick), RIGHT - 4), bottom + 22, f"{tick:,.6g}", css="tick", size=14))
    out.append(f'<path class="axis" d="M{LEFT:g} {bottom:g}H{RIGHT:g}"/>')
    out.append(text((LEFT + RIGHT) / 2, bottom + 42, f"simulated milliseconds, {brief(bars.span_ms)} in all", size=14))
    told = "; ".join(words for _, words in names)
    return drawing(label, "".join(out), WIDTH, bottom + 52, "min-width:720px", told)


def height(position: int, kinds: Sequence[int]) -> float:
    """Return the share of the lane that bars of a kind fill: all of it for the first kind, less for later ones."""
    return 1 - 0.65 * position / max(len(kinds) - 1, 1)


def swatch(position: int, kinds: Sequence[int]) -> str:
    """Return a bar of the kind for a legend, in a box from -8 to 8."""
    high = 14 * height(position, kinds)
    return f'<path class="bars" stroke-width="{high:.3g}" d="M-6 {7 - high / 2:.3g}H6"/>'


def _runs(shown: np.ndarray, middle: float) -> str:
    """Return a path with one stroke for each run of cells."""
    bounds = np.flatnonzero(np.diff(np.r_[False, shown, False].astype(np.int64))).reshape(-1, 2)
    places = LEFT + bounds * (RIGHT - LEFT) / len(shown)
    return "".join(f"M{first:.5g} {middle:.4g}H{last:.5g}" for first, last in places.tolist())
