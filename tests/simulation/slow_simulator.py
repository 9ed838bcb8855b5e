"""The simulator's slow twin: the same rule and the same contention, in lists and dictionaries, one event at a time."""

from __future__ import annotations

import math

from gst.lowering.calls import Costs
from gst.lowering.plan import Plan, ranks
from gst.simulation.simulator import Contention

LEAST_RATE = 0.2


def simulate(costs: Costs, contention: Contention, plan: Plan) -> tuple[list[float], list[float]]:
    """Begin and end of every node."""
    names = [device.name for device in costs.devices]
    home = [names.index(plan.devices[place]) for place in plan.placement]
    rank = ranks(plan).tolist()
    cores = [set(device.cores) or {f"any core of {device.name}"} for device in costs.devices]
    thread = [min(device.cores) if device.cores else device.name for device in costs.devices]
    own_core = {thread[d]: min(each.cores, default=f"any core of {each.name}") for d, each in enumerate(costs.devices)}
    edges = [(p, c) for p, c in costs.edges.T.tolist() if costs.computed[p] and costs.computed[c]]
    producers = {node: [p for p, c in edges if c == node] for node in range(costs.num_nodes)}
    traffic = costs.traffic_bytes / 1e4

    begin, end = [0.0] * costs.num_nodes, [0.0] * costs.num_nodes
    todo = {node for node in range(costs.num_nodes) if costs.computed[node]}
    done: set[int] = set()
    running: dict[int, list[float]] = {}  # device -> [node, microseconds left]
    idle_since = dict.fromkeys(thread, 0.0)
    covered = dict.fromkeys(thread, False)
    helped_until = dict.fromkeys(thread, -math.inf)
    now, waker = 0.0, None
    memory = [costs.devices[device].memory for device in home]
    there: dict[tuple[int, str], float] = {}  # value, memory -> when its copy is there

    def copy() -> None:
        """Begin what each lane of copies can begin now: it takes the value of the operation that began first, as soon
        as that has ended, first for its first reader in program order, and waits for nothing but for that."""
        for lane in dict.fromkeys(memory) if costs.copies_queue else ():
            if any(memory[p] == lane and until > now for (p, _), until in there.items()):
                continue
            begun = [p for p in [*done, *(int(node) for node, _ in running.values())] if memory[p] == lane]
            for p in sorted(begun, key=lambda p: (begin[p], end[p] if p in done else math.inf, p)):
                readers = sorted(c for q, c in edges if q == p and memory[c] != lane and (p, memory[c]) not in there)
                if readers:
                    if p in done:
                        took = costs.output_bytes[p] / costs.bytes_per_us[home[p], home[readers[0]]]
                        there[p, memory[readers[0]]] = now + costs.latency_us[home[p], home[readers[0]]] + took
                    break

    def arrives(node: int) -> float:
        """When the last of its inputs is there; never, if one is not made."""
        times = [0.0]
        for p in producers[node]:
            if p not in done:
                return math.inf
            a, b = home[p], home[node]
            if costs.copies_queue and memory[p] != memory[node]:
                times.append(there.get((p, memory[node]), math.inf))
                continue
            times.append(end[p] + costs.latency_us[a, b] + costs.output_bytes[p] / costs.bytes_per_us[a, b])
        return max(times)

    def loses(device: int) -> float:
        mine = int(running[device][0])
        total = 0.0
        for other, (node, _) in running.items():
            if other != device:
                both = [traffic[n] / max(costs.times_us[d, n], 1e-3) for d, n in ((device, mine), (other, int(node)))]
                total += contention.slowdown + contention.memory_slowdown * both[0] * both[1]
        return max(1 - total, LEAST_RATE)

    while len(done) < int(costs.computed.sum()):
        ready = [node for node in todo if arrives(node) <= now]
        claimed = set().union(*(cores[device] for device in running)) if running else set()
        for device in sorted({home[n] for n in ready}, key=lambda d: min(rank[n] for n in ready if home[n] == d)):
            node = min((n for n in ready if home[n] == device), key=lambda n: rank[n])
            if not cores[device] & claimed:
                mine = thread[device]
                if mine == waker:
                    delay = contention.switch_us
                elif covered[mine] or now - idle_since[mine] > contention.spin_us:
                    delay = contention.wake_us
                else:
                    delay = contention.hand_over_us
                remote = sum(costs.output_bytes[p] for p in producers[node] if thread[home[p]] != mine)
                begin[node] = now + delay
                left = delay + costs.times_us[device, node] + remote * contention.remote_ns_per_byte / 1e3
                if costs.devices[device].threads > 1 and now - helped_until[mine] > contention.helper_spin_us:
                    left += contention.helper_us
                running[device] = [node, left]
                todo.remove(node)
                covered[mine] = False
                for other in covered:
                    if other != mine and own_core[other] in cores[device]:
                        covered[other] = True
            claimed |= cores[device]
        rates = {device: loses(device) for device in running}
        ends = {device: now + left / rates[device] for device, (_, left) in running.items()}
        if min(ends.values(), default=math.inf) > now:  # all that begins and ends at this moment has done so
            copy()
        arrivals = [arrives(node) for node in todo if now < arrives(node) < math.inf]
        arrivals += [until for until in there.values() if until > now]
        then = min([*ends.values(), *arrivals])
        for device in running:
            running[device][1] -= (then - now) * rates[device]
        waker = None
        if ends and min(ends.values()) <= min(arrivals, default=math.inf):
            device = min(sorted(ends), key=lambda d: ends[d])
            node = int(running.pop(device)[0])
            end[node] = then
            done.add(node)
            waker = thread[device]
            idle_since[waker] = then
            if costs.devices[device].threads > 1:
                helped_until[waker] = then
        now = then
    return begin, end
