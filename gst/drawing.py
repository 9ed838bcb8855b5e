"""A computation graph as inline SVG: nodes at their depth, or segments as discs where there are too many nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gst.charts import NUM_COLOURS, Floats, Ints, drawing, escape, text

MAX_NODES, MAX_EDGES = 5_000, 12_000
"""Above either, segments are drawn instead of nodes (and the page stays below a megabyte)."""

MAX_LANES, MAX_BLOBS, MAX_NUMBERED = 44, 600, 80


def depths(edges: Ints, num_nodes: int) -> Ints:
    """Layers by longest path, each node then moved right, next to its first reader; cycles come last."""
    source, target = edges
    order = np.argsort(source, kind="stable")
    readers, first = target[order], np.searchsorted(source[order], np.arange(num_nodes + 1))
    waiting = np.bincount(target, minlength=num_nodes)
    depth = np.full(num_nodes, -1, np.int64)
    frontier = np.flatnonzero(waiting == 0)
    levels: list[Ints] = []
    while frontier.size:
        depth[frontier] = len(levels)
        levels.append(frontier)
        degree = first[frontier + 1] - first[frontier]
        skip = np.repeat(first[frontier] - np.cumsum(degree) + degree, degree)
        reached = readers[skip + np.arange(degree.sum())]
        np.subtract.at(waiting, reached, 1)
        frontier = np.unique(reached[waiting[reached] == 0])
    depth[depth < 0] = len(levels)
    for nodes in levels[::-1]:
        for node in nodes[first[nodes + 1] > first[nodes]].tolist():
            depth[node] = depth[readers[first[node] : first[node + 1]]].min() - 1
    return depth


def settle(wanted: Floats, lanes: float) -> Floats:
    """Places at least one lane apart, close to those wanted (ascending), all within the lanes."""
    rank = np.arange(len(wanted))
    slack = wanted - rank
    slack = (np.maximum.accumulate(slack) + np.minimum.accumulate(slack[::-1])[::-1]) / 2
    return np.clip(slack, 0, max(lanes - len(wanted), 0)) + rank


def places(edges: Ints, num_nodes: int) -> tuple[Floats, Floats]:
    """Column and lane of each node. Neighbours attract each other; a crowded depth takes several columns."""
    depth = depths(edges, num_nodes)
    columns = [np.flatnonzero(depth == level) for level in np.unique(depth)]
    lanes = min(max(map(len, columns)), MAX_LANES)
    column, lane = np.zeros(num_nodes), np.full(num_nodes, (lanes - 1) / 2)
    around = []
    for near, far in (edges[::-1], edges):
        order = np.argsort(near, kind="stable")
        around.append((far[order], np.searchsorted(near[order], np.arange(num_nodes + 1))))
    for sweep in range(5):
        far, first = around[sweep % 2]
        position = 0
        for nodes in columns if sweep % 2 == 0 else columns[::-1]:
            friends = [far[first[n] : first[n + 1]] for n in nodes]
            own = lane[nodes]
            wanted = np.array([lane[f].mean() if f.size else o for f, o in zip(friends, own, strict=True)])
            nodes = nodes[np.argsort(wanted, kind="stable")]
            strips = -(-len(nodes) // lanes)
            for strip in range(strips):
                lane[nodes[strip::strips]] = settle(np.sort(wanted)[strip::strips], lanes)
                column[nodes[strip::strips]] = position
                position += 1
    return column, lane


def colours(edges: Ints, num_parts: int) -> Ints:
    """A colour for each part so that parts joined by an edge differ wherever the palette suffices."""
    joined: list[set[int]] = [set() for _ in range(num_parts)]
    for one, other in edges.T.tolist():
        joined[one].add(other)
        joined[other].add(one)
    chosen = np.full(num_parts, -1, np.int64)
    used = np.zeros(NUM_COLOURS)
    for part in sorted(range(num_parts), key=lambda part: (-len(joined[part]), part)):
        cost = used + 1e9 * np.isin(np.arange(NUM_COLOURS), chosen[list(joined[part])])
        chosen[part] = int(np.argmin(cost))
        used[chosen[part]] += 1
    return chosen


def quotient(edges: Ints, part: Ints) -> tuple[Ints, Ints]:
    """The edges between different parts, each once, and how many edges each stands for."""
    pairs = part[edges]
    pairs = pairs[:, pairs[0] != pairs[1]]
    unique, counts = np.unique(pairs, axis=1, return_counts=True)
    return unique, counts


def draw_nodes(
    edges: Ints, segment: Ints, device: Ints, titles: Sequence[str], labels: tuple[str, str]
) -> tuple[str, str]:
    """Every node as a dot: coloured by segment, then by device with the edges between devices in front."""
    column, lane = places(edges, len(segment))
    width = float(np.clip(4 * (column.max() + 1), 1080, 3000))
    across = (width - 24) / max(column.max(), 1)
    top = min(26 * lane.max(), 440 * min(width / 1080, 1.6))
    crowd = np.searchsorted(np.sort(lane), lane) / len(lane)  # crowded lanes get more of the height
    height = top + 24
    down = top / max(lane.max(), 1)
    x = np.round(12 + np.minimum(across, 40) * column, 1)
    x += (width - 12 - x.max()) / 2 - 6
    y = np.round(12 + top * (0.45 * lane / max(lane.max(), 1) + 0.55 * crowd / max(crowd.max(), 1e-9)), 1)
    radius = float(np.clip(min(0.75 * across, 0.42 * down), 1.8, 6))
    at = [f"{a:.5g} {b:.4g}" for a, b in zip(x, y, strict=True)]
    bend = len(edges.T) <= MAX_EDGES // 2

    def wires(chosen: Ints) -> str:
        if not bend:
            return "".join(f"M{at[u]}L{at[v]}" for u, v in chosen.T.tolist())
        return "".join(
            f"M{at[u]}C{(x[u] + x[v]) / 2:.5g} {y[u]:.4g} {(x[u] + x[v]) / 2:.5g} {y[v]:.4g} {at[v]}"
            for u, v in chosen.T.tolist()
        )

    colour = colours(quotient(edges, segment)[0], int(segment.max()) + 1)
    far = abs(x[edges[1]] - x[edges[0]]) > 0.12 * width
    spans = (("wires far", edges[:, far]), ("wires", edges[:, ~far]))
    wire = "".join(f'<path class="{css}" d="{wires(chosen)}"/>' for css, chosen in spans)
    wire = f'<g id="wires">{wire}</g>'
    dots = []
    for part in np.unique(segment):
        dots.append(f'<g class="dot c{colour[part]}">')
        for n in np.flatnonzero(segment == part).tolist():
            where = f'cx="{x[n]:.5g}" cy="{y[n]:.4g}" r="{radius:.3g}"'
            dots.append(f"<circle {where}><title>{escape(titles[n], 90)}</title></circle>")
        dots.append("</g>")
    size = round(13 * max(width / 1080, 1))
    parts, counts = np.unique(segment, return_counts=True)
    for part in parts[np.argsort(-counts)][:MAX_NUMBERED].tolist():
        inside = np.flatnonzero(segment == part)
        off = abs(x[inside] - np.median(x[inside])) + abs(y[inside] - np.median(y[inside]))
        home = inside[np.argmin(off)]
        dots.append(text(x[home], y[home] + size / 3, part, css="halo", size=size))
    crossing = edges[:, device[edges[0]] != device[edges[1]]]
    second = [f'<use href="#wires"/><path class="wires crossing" d="{wires(crossing)}"/>']
    for index in np.unique(device):
        dashes = "".join(f"M{at[n]}h.01" for n in np.flatnonzero(device == index))
        cap = ("round", "square")[index % 2]
        wide = 2 * radius * (1, 0.85)[index % 2]
        look = f'class="dots c{index % NUM_COLOURS}" stroke-linecap="{cap}" stroke-width="{wide:.3g}"'
        second.append(f'<path {look} d="{dashes}"/>')
    style = f"min-width:{0.62 * width:.0f}px"
    return (
        drawing(labels[0], wire + "".join(dots), width, height, style),
        drawing(labels[1], "".join(second), width, height, style),
    )


def draw_segments(edges: Ints, segment: Ints, device: Ints, labels: tuple[str, str]) -> tuple[str, str]:
    """Segments as discs (area: nodes) from left to right by mean depth; then the same as pies of devices."""
    depth = depths(edges, len(segment))
    sizes = np.bincount(segment)
    kept = np.argsort(-sizes, kind="stable")[: min(MAX_BLOBS, int((sizes > 0).sum()))]
    mean = np.bincount(segment, weights=depth) / np.maximum(sizes, 1)
    kept = kept[np.argsort(mean[kept], kind="stable")]
    pairs, counts = quotient(edges, segment)
    shown = np.isin(pairs, kept).all(axis=0)
    colour, width, height = colours(pairs, len(sizes)), 1080.0, 440.0
    radius = np.sqrt(sizes / sizes[kept].sum() * 0.2 * width * height / np.pi).clip(3, 60)
    even = np.argsort(np.argsort(mean)) / max(len(mean) - 1, 1)
    x = 70 + (width - 140) * (mean / max(mean.max(), 1) + even) / 2
    y, done = np.full(len(sizes), height / 2), np.zeros(0, np.int64)
    for part in kept:
        near = np.r_[pairs[0][pairs[1] == part], pairs[1][pairs[0] == part]]
        near = near[np.isin(near, done)]
        wanted = y[near].mean() if near.size else height / 2
        choices = np.arange(radius[part] + 6, height - radius[part] - 5, 4.0)
        gap = np.hypot(x[done, None] - x[part], y[done, None] - choices) - radius[done, None] - radius[part]
        overlap = np.maximum(6 - gap, 0).sum(axis=0)
        y[part] = choices[np.argmin(1000 * overlap + abs(choices - wanted))]
        done = np.append(done, part)
    thick = 0.6 + 5 * np.log1p(counts) / np.log1p(counts.max(initial=1))
    wire = "".join(
        f'<path class="wires" stroke-width="{w:.2g}" d="M{x[a]:.4g} {y[a]:.4g}'
        f'C{(x[a] + x[b]) / 2:.4g} {y[a]:.4g} {(x[a] + x[b]) / 2:.4g} {y[b]:.4g} {x[b]:.4g} {y[b]:.4g}"/>'
        for (a, b), w in zip(pairs[:, shown].T, thick[shown], strict=True)
    )
    first, second = [f'<g id="wires">{wire}</g>'], ['<use href="#wires"/>']
    for part in kept:
        where = f'cx="{x[part]:.4g}" cy="{y[part]:.4g}"'
        words = f"<title>segment {part}: {sizes[part]:,} nodes</title>"
        first.append(f'<circle class="blob c{colour[part]}" {where} r="{radius[part]:.3g}">{words}</circle>')
        start, r = 0.0, radius[part]
        share = 100 * np.bincount(device[segment == part]) / sizes[part]
        for index in np.flatnonzero(share):
            part_of = f'stroke-dasharray="{share[index]:.4g} 100" stroke-dashoffset="{-start:.4g}"'
            look = f'class="pie c{index % NUM_COLOURS}" stroke-width="{r:.3g}"'
            second.append(f'<circle {look} {where} r="{r / 2:.3g}" pathLength="100" {part_of}/>')
            start += share[index]
        if r >= 9:
            first.append(text(x[part], y[part] + 5, part, css="halo"))
    style = "min-width:670px"
    views = ("".join(first), "".join(second))
    one, other = (drawing(labels[i], views[i], width, height, style) for i in (0, 1))
    return one, other
