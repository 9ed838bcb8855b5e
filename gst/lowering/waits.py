"""Where lanes wait for each other. Actions in the common order go in, with those that each needs to be done; the steps
of each lane come out, with as few waits as imply all of that."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool

from gst.lowering.common_order import Actions
from gst.lowering.stream_program import RECORD, WAIT, Ints, Rows
from gst.util.compiled import compiled


def steps_of(actions: Actions, needs: Rows, lanes: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Actions with waits for the earlier ones that each needs, lane by lane: bounds, kinds, arguments and targets.

    Args:
        actions: in the common order.
        needs: of each action those that must be done before it, the latest first.
        lanes: their number.
    """
    count = len(actions.kind)
    waiter, awaited = _waits(actions.lane, needs.bounds, needs.items, lanes)
    recorded = np.unique(awaited)
    event = np.searchsorted(recorded, awaited)
    is_recorded: Bool[np.ndarray, " actions"] = np.zeros(count, bool)
    is_recorded[recorded] = True
    # Sorted by lane, action, and waits (0) before the action (1) before its record (2).
    of = np.concatenate([waiter, np.arange(count), recorded])
    part = np.repeat([0, 1, 2], [len(waiter), count, len(recorded)])
    kind = np.concatenate([np.full(len(waiter), WAIT), actions.kind, np.full(len(recorded), RECORD)])
    argument = np.concatenate([event, actions.argument, np.arange(len(recorded))])
    target = np.concatenate([np.full(len(waiter), -1), actions.target, np.full(len(recorded), -1)])
    order = np.lexsort((part, of, actions.lane[of]))
    bounds = np.zeros(lanes + 1, np.int64)
    np.cumsum(np.bincount(actions.lane[of], minlength=lanes), out=bounds[1:])
    return bounds, kind[order].astype(np.int64), argument[order].astype(np.int64), target[order].astype(np.int64)


@compiled
@no_type_check
def _waits(lane, bounds, needs, lanes):
    """Pairs (action that waits, action that it waits for) that are not implied by others: the transitive reduction.

    Args:
        lane: of each action, in the common order.
        bounds, needs: actions that must be done before each one, the latest first.
        lanes: their number.
    """
    count = len(lane)
    clocks = np.zeros((lanes, lanes), np.int32)  # actions of each lane that are done when a lane goes on
    done = np.zeros((count, lanes), np.int32)  # the same when an action is done
    position = np.zeros(count, np.int64)
    waiter, awaited = np.empty(len(needs), np.int64), np.empty(len(needs), np.int64)
    waits = 0
    for action in range(count):
        mine = lane[action]
        for at in range(bounds[action], bounds[action + 1]):
            need = needs[at]
            if clocks[mine, lane[need]] > position[need]:
                continue
            for each in range(lanes):
                clocks[mine, each] = max(clocks[mine, each], done[need, each])
            waiter[waits], awaited[waits] = action, need
            waits += 1
        position[action] = clocks[mine, mine]
        clocks[mine, mine] += 1
        done[action] = clocks[mine]
    return waiter[:waits], awaited[:waits]
