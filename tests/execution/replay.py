"""Is a run one of those that a stream program allows, and what lies in its memory behind each operation?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gst.lowering.plan import FREE, RECORD, RUN, WAIT, StreamProgram, Timeline


def assert_is_a_run_of(streams: StreamProgram, run: Timeline) -> None:
    """Each lane takes its operations in the order in which they began, and none begins before what it waits for."""
    bounds, node = streams.bounds.tolist(), streams.members.items
    lanes = [iter(range(begin, end)) for begin, end in pairwise(bounds)]
    now, recorded = [0.0] * len(lanes), dict[int, float]()
    step = [next(lane, None) for lane in lanes]
    while any(each is not None for each in step):
        before = list(step)
        for lane, its in enumerate(lanes):
            while (at := step[lane]) is not None:
                argument = int(streams.argument[at])
                if streams.kind[at] == WAIT:
                    if argument not in recorded:
                        break
                    now[lane] = max(now[lane], recorded[argument])
                elif streams.kind[at] == RUN:
                    assert now[lane] <= run.begin_us[node[argument]] + 1e-9, streams.place_words(at)
                    now[lane] = run.end_us[node[argument]]
                elif streams.kind[at] == RECORD:
                    recorded[argument] = now[lane]
                step[lane] = next(its, None)
        assert step != before, "lanes wait for each other"


def bytes_behind(streams: StreamProgram) -> dict[int, int]:
    """By node of a program of one lane the bytes of buffers when its operation has run and frees have been taken."""
    node_of, holds = streams.made[0].tolist(), dict(zip(streams.made[0].tolist(), streams.holds.lists(), strict=True))
    holders = np.zeros(len(streams.buffer_bytes), np.int64)
    behind: dict[int, int] = {}
    latest = -1
    for kind, argument in zip(streams.kind.tolist(), streams.argument.tolist(), strict=True):
        if kind == RUN:
            latest = int(streams.members.items[argument])
        made = latest if kind == RUN else argument
        if made in node_of:
            holders[holds[made]] += 1 if kind == RUN else -1
        assert kind in (RUN, FREE)
        behind[latest] = int(streams.buffer_bytes[holders > 0].sum())
    return behind
