"""Published problems on machines: schedules against slow twins, bounds against all plans, and commands."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

from experiments.reproductions.public_problems.__main__ import main
from experiments.reproductions.public_problems.annealing import anneal
from experiments.reproductions.public_problems.baselines import baselines
from experiments.reproductions.public_problems.bounds import lower_bound, searched_bound
from experiments.reproductions.public_problems.formats import PublicGraph, read_public_graph
from experiments.reproductions.public_problems.integer_program import solve
from experiments.reproductions.public_problems.placing import place_public, trace_of_schedule
from experiments.reproductions.public_problems.problem import Problem, public_problem
from experiments.reproductions.public_problems.proofs import proved_bound
from experiments.reproductions.public_problems.schedules import Schedule, moved, run_by_ready
from gst.lowering.plan import Plan
from tests.placement.test_exports import check_trace

FIXTURES = Path(__file__).parents[2] / "fixtures/public_graphs"
ALL = ("doppler.txt", "moirai.xls", "pipedream.txt", "piper.json", "msr.json", "workflow.json", "workflow_1_3.json")


def problem_of(name: str, machine: str = "gpus:2") -> Problem:
    if name.endswith(".xls"):
        pytest.importorskip("xlrd", reason="needs the extra 'experiments'")
    return public_problem(read_public_graph(FIXTURES / name), machine)


def random_graph(seed: int, nodes: int = 5, kinds: int = 1, first_come: bool = False) -> PublicGraph:
    """A graph with times and transfers of whole numbers, some of them zero, so that much happens at once."""
    generator = np.random.default_rng(seed)
    pairs = [(a, b) for b in range(nodes) for a in range(b) if generator.random() < 0.4]
    shuffled = [pairs[n] for n in generator.permutation(len(pairs))]
    edges: np.ndarray = np.array(shuffled, np.int64).reshape(-1, 2).T
    times = generator.integers(0, 6, (kinds, nodes)).astype(np.float64)
    if kinds > 1:
        times[0, generator.integers(nodes)] = np.inf
    groups = np.arange(nodes)
    if not first_come and nodes > 2:
        groups[generator.integers(1, nodes)] = 0
    groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    if first_come:
        amounts = generator.integers(0, 5, nodes).astype(np.float64)[edges[0]]
    else:
        amounts = generator.integers(0, 5, edges.shape[1]).astype(np.float64)
    return PublicGraph(
        "random", "made", tuple(map(str, range(nodes))), generator.permutation(nodes), tuple("ab"[:kinds]), times,
        edges, amounts, np.ones((1, 1)) if kinds == 1 else np.array([[1.0, 2.0], [2.0, 3.0]]),
        np.zeros((0, kinds, kinds)), groups, np.ones(nodes), np.full(kinds, np.inf), (0,) * kinds,
        first_come=first_come,
    )  # fmt: skip


def in_order_slowly(problem: Problem, home: np.ndarray, order: np.ndarray) -> float:
    end: dict[int, float] = {}
    free = dict.fromkeys(range(len(problem.devices)), 0.0)
    pairs = list(enumerate(problem.graph.edges.T.tolist()))
    for node in order.tolist():
        arrivals = [
            end[a] + moved(edge, int(home[a]), int(home[node]), problem.arrays) for edge, (a, b) in pairs if b == node
        ]
        end[node] = max([free[home[node]], *arrivals]) + float(problem.arrays.times[home[node], node])
        free[home[node]] = end[node]
    return max(end.values())


def first_come_slowly(problem: Problem, home: np.ndarray) -> float:
    """DOPPLER's simulator with a queue of (time, number, event): processes as events that follow each other."""
    events: list[tuple[float, int, str, int]] = []
    number = 0

    def push(when: float, kind: str, what: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, kind, what))

    nodes = problem.num_nodes
    pairs = problem.graph.edges.T.tolist()
    left = [sum(b == node for _, b in pairs) for node in range(nodes)]
    queues: dict[int, list[int]] = {device: [] for device in range(len(problem.devices))}
    busy = dict.fromkeys(queues, False)
    for node in sorted(range(nodes), key=lambda each: problem.graph.file_rank[each]):
        if not left[node]:
            push(0.0, "ready", node)
    now = 0.0

    def serve(device: int) -> None:
        if queues[device] and not busy[device]:
            busy[device] = True
            push(now, "granted", queues[device].pop(0))

    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ready":
            queues[int(home[what])].append(what)
            serve(int(home[what]))
        elif kind == "granted":
            push(now + float(problem.arrays.times[home[what], what]), "ended", what)
        elif kind == "ended":
            busy[int(home[what])] = False
            push(now, "released", what)
            push(now, "finished", what)
        elif kind == "released":
            serve(int(home[what]))
        elif kind == "finished":
            for edge, (a, b) in enumerate(pairs):
                if a == what:
                    push(now + moved(edge, int(home[a]), int(home[b]), problem.arrays), "arrived", edge)
        elif kind == "arrived":
            push(now, "counted", what)
        else:
            consumer = pairs[what][1]
            left[consumer] -= 1
            if not left[consumer]:
                push(now, "ready", consumer)
    return now


def heft_slowly(problem: Problem) -> float:
    """HEFT as Topcuoglu, Hariri and Wu write it (2002, figures 2 and 3), with dictionaries."""
    times, pairs, devices = problem.arrays.times, problem.graph.edges.T.tolist(), range(len(problem.devices))
    rank: dict[int, float] = {}
    for node in reversed(range(problem.num_nodes)):
        ways = [problem.mean_transfers[edge] + rank[b] for edge, (a, b) in enumerate(pairs) if a == node]
        rank[node] = float(times[:, node].mean() + max(ways, default=0.0))
    busy: dict[int, list[tuple[float, float]]] = {device: [] for device in devices}
    end: dict[int, float] = {}
    home: dict[int, int] = {}
    for node in sorted(rank, key=lambda each: (-rank[each], each)):
        options = []
        for device in devices:
            ready = max(
                [
                    end[a] + moved(edge, home[a], device, problem.arrays)
                    for edge, (a, b) in enumerate(pairs)
                    if b == node
                ],
                default=0.0,
            )
            took = float(times[device, node])
            starts = [start for start in [ready, *(e for _, e in busy[device])] if start >= ready]
            free = [s for s in starts if all(s + took <= begin or s >= finish for begin, finish in busy[device])]
            options.append((min(free) + took, device))
        end[node], home[node] = min(options)
        busy[home[node]].append((end[node] - float(times[home[node], node]), end[node]))
    return max(end.values())


def least_of_all(problem: Problem) -> float:
    """The least makespan of all placements and all orders."""
    nodes, best = problem.num_nodes, np.inf
    pairs = problem.graph.edges.T.tolist()
    orders = []
    for order in permutations(range(nodes)):
        place = {node: number for number, node in enumerate(order)}
        if all(place[a] < place[b] for a, b in pairs):
            orders.append(np.array(order))
    for home in product(range(len(problem.devices)), repeat=nodes):
        for order in orders[:1] if problem.graph.first_come else orders:
            plan = Schedule(problem, np.array(home), order)
            if not plan.reason:
                best = min(best, plan.makespan)
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_devices_run_their_operations_in_the_order_of_the_plan(seed: int) -> None:
    problem = public_problem(random_graph(seed, 9, kinds=1 + seed % 2), "gpus:3")
    generator = np.random.default_rng(seed)
    home = generator.integers(0, 3, 9)[np.unique(problem.arrays.groups, return_index=True)[1]][problem.arrays.groups]
    plan = Schedule(problem, home)
    if not plan.reason:
        assert plan.makespan == in_order_slowly(problem, home, plan.order)


@pytest.mark.parametrize("seed", range(20))
def test_heft_is_that_of_its_paper(seed: int) -> None:
    graph = random_graph(seed, 25)
    generator = np.random.default_rng(seed)
    graph = replace(graph, times=generator.uniform(1, 9, (2, 25)), kinds=("a", "b"), groups=np.arange(25),
                    amounts=generator.uniform(0, 6, graph.edges.shape[1]), limits=np.full(2, np.inf), counts=(0, 0),
                    pair_times=np.zeros((0, 2, 2)))  # fmt: skip
    problem = public_problem(graph, "gpus:4")
    assert baselines(problem)["heft"].makespan <= heft_slowly(problem) * (1 + 1e-12), "the same, or pushed together"
    assert baselines(problem)["heft"].makespan == pytest.approx(heft_slowly(problem))


@pytest.mark.parametrize("seed", range(40))
def test_first_come_first_served_runs_as_dopplers_simulator_does(seed: int) -> None:
    problem = public_problem(random_graph(seed, 14, first_come=True), "gpus:3")
    for home in np.random.default_rng(seed).integers(0, 3, (5, 14)):
        assert Schedule(problem, home).makespan == first_come_slowly(problem, home)


@pytest.mark.parametrize("seed", range(10))
def test_the_screen_of_first_come_first_served_is_exact_where_nothing_happens_at_once(seed: int) -> None:
    """Every value has one reader: several would become ready at once."""
    generator = np.random.default_rng(seed)
    readers = np.array([generator.integers(node + 1, 30) for node in range(29)])
    unequal = replace(
        random_graph(seed, 30, first_come=True), times=generator.uniform(1, 9, (1, 30)), file_rank=np.arange(30),
        edges=np.stack([np.arange(29), readers]), amounts=generator.uniform(0, 5, 29),
    )  # fmt: skip
    problem, ahead = public_problem(unequal, "gpus:3"), np.zeros(30)
    for home in generator.integers(0, 3, (5, 30)):
        exact = Schedule(problem, home).makespan
        assert run_by_ready(home, problem.arrays, ahead, np.inf) == pytest.approx(exact)
        assert run_by_ready(home, problem.arrays, ahead, exact * 0.99) == np.inf


def test_a_crossing_takes_the_transfer_of_the_producer_and_results_are_divided() -> None:
    problem = problem_of("doppler.txt")
    assert Schedule(problem, np.array([0, 0, 0, 0])).makespan == 10.0
    # 0 ends at 2, its value is there at 3, 2 ends at 7, its value is back at 9: 9 + 1
    assert Schedule(problem, np.array([0, 0, 1, 0])).makespan == 10.0
    # 1 moves instead: it ends at 6, its value is back at 7; 2 ends at 6: 7 + 1
    assert Schedule(problem, np.array([0, 1, 0, 0])).makespan == 8.0


@pytest.mark.parametrize("seed", range(14))
def test_no_plan_is_below_the_bounds(seed: int) -> None:
    problem = public_problem(
        random_graph(seed, 5, 1 + seed % 2, first_come=seed % 4 == 0), f"gpus:{2 + (seed % 3 == 0)}",
        memory_limit=3 if seed % 4 > 1 else None,
    )  # fmt: skip
    least = least_of_all(problem)
    searched = [searched_bound(problem, 0.0, most, 20.0) for most in (np.inf, least * 1.5, least)]
    assert max(lower_bound(problem), solve(problem, 20.0).bound, *(each.bound for each in searched)) <= least + 1e-9
    assert searched[0].bound >= 0.7 * least and searched[0].complete
    plans = {name: plan for name, plan in baselines(problem).items() if not plan.reason}
    assert plans and min(plan.makespan for plan in plans.values()) >= least
    start = min(plans.values(), key=lambda plan: plan.makespan)
    searched, _ = anneal(problem, start, steps=4_000, seed=seed)
    assert least <= searched.makespan <= start.makespan
    assert searched.makespan == pytest.approx(least) or problem.arrays.limits[0] < np.inf, "so small that it is found"


def test_the_integer_program_counts_memory_and_the_way_to_the_cpu() -> None:
    """A chain of four operations, each ten times as slow on the CPU, which is a transfer of 2 away."""
    chain = replace(
        random_graph(0, 4), kinds=("cpu", "accelerator"), times=np.array([[10.0] * 4, [1.0] * 4]), groups=np.arange(4),
        edges=np.array([[0, 1, 2], [1, 2, 3]]), amounts=np.full(3, 2.0), hops=np.array([[0.0, 1.0], [1.0, 2.0]]),
        pair_times=np.zeros((0, 2, 2)), limits=np.array([np.inf, 2.0]), counts=(1, 1), format="msr",
    )  # fmt: skip
    small = public_problem(chain, "gpus:1")
    assert lower_bound(small) == 4.0 and least_of_all(small) == 24.0
    bound, plan = solve(small, 5.0)
    assert bound == pytest.approx(24.0, rel=2e-3) and plan is not None and plan.makespan == 24.0
    times = chain.times.copy()
    times[1, 1] = np.inf
    unable = public_problem(replace(chain, times=times, limits=np.full(2, np.inf)), "gpus:1")
    assert solve(unable, 5.0).bound == pytest.approx(17.0, rel=2e-3) and least_of_all(unable) == 17.0


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_the_solver_proves_the_least_of_all_plans(seed: int) -> None:
    pytest.importorskip("ortools", reason="needs the extra 'experiments'")
    problem = public_problem(random_graph(seed, 5, 1 + seed % 2), "gpus:2")
    least = least_of_all(problem)
    plan = next(plan for plan in baselines(problem).values() if not plan.reason)
    bound, best = proved_bound(problem, 10.0, plan)
    assert bound == pytest.approx(least, abs=1e-6) and best is not None and best.makespan == pytest.approx(least)


def test_the_bound_counts_transfers() -> None:
    """Two producers of 5 that a third reads: together 10, apart 5 and a transfer of 3."""
    graph = random_graph(0, 3)
    fork = replace(
        graph, edges=np.array([[0, 1], [2, 2]]), amounts=np.array([3.0, 3.0]), times=np.array([[5.0, 5.0, 1.0]]),
        groups=np.arange(3),
    )  # fmt: skip
    assert lower_bound(public_problem(fork, "gpus:2")) == 9.0
    assert lower_bound(public_problem(replace(fork, amounts=np.array([6.0, 6.0])), "gpus:8")) == 11.0


def test_annealing_by_steps_is_that_of_its_seed() -> None:
    problem = public_problem(random_graph(3, 30), "gpus:3")
    start = Schedule(problem, np.zeros(30, np.int64))
    first, again = (anneal(problem, start, steps=2_000, seed=4)[0] for _ in range(2))
    assert first.makespan == again.makespan and (first.home == again.home).all() and (first.order == again.order).all()
    assert first.makespan < start.makespan


def test_memory_limits_and_colocation_are_kept() -> None:
    graph = random_graph(1, 12)
    problem = public_problem(graph, "gpus:4", memory_limit=4)
    result, plan = place_public(problem, 0.2)
    used = np.bincount(plan.home, minlength=4)
    assert used.max() <= 4 and result["plans"]["single:cuda:0"]["makespan"] is None
    assert "would hold" in result["plans"]["single:cuda:0"]["reason"]
    leader = np.unique(graph.groups, return_index=True)[1]
    assert (plan.home == plan.home[leader][graph.groups]).all()
    with pytest.raises(ValueError, match=r"no plan of random fits gpus:2: .*add devices or memory"):
        place_public(public_problem(graph, "gpus:2", memory_limit=4), 0.1)


@pytest.mark.parametrize("name", ALL)
def test_each_format_is_placed_from_end_to_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = problem_of(name)
    monkeypatch.chdir(tmp_path)
    arguments = ["place", str(FIXTURES / name), "--machine", "gpus:2", "--seconds", "0.1"]
    assert main([*arguments, "--json", "result.json"]) == 0
    result = json.loads(Path("result.json").read_text())
    assert 0 < result["lower_bound"] <= result["objective"] * (1 + 1e-9)
    ran = {plan: row["makespan"] for plan, row in result["plans"].items() if row["makespan"] is not None}
    assert result["objective"] == min(ran.values()) == ran[result["best"]]
    assert {"heft", "cpop", "peft", "metis", "round_robin", "critical_path"} <= set(result["plans"])
    assert ("expert" in result["plans"]) == (name in ("msr.json", "pipedream.txt"))
    path = Path("runs/place") / Path(name).stem / "plan.json"
    plan, record = Plan.load(path), json.loads(path.read_text())
    assert plan.priority is not None
    written = Schedule(problem, plan.placement, np.argsort(-plan.priority))
    assert written.makespan == pytest.approx(result["objective"]) == pytest.approx(record["makespan"])
    assert record["nodes"] == list(problem.graph.ids) and max(record["end"]) == pytest.approx(record["makespan"])
    printed = capsys.readouterr().out
    assert all(plan in printed for plan in result["plans"]) and "no plan takes less than" in printed


def test_a_file_with_two_kinds_on_a_machine_of_cpus_has_the_times_of_its_cpu() -> None:
    problem = problem_of("msr.json", "cores:2")
    assert problem.devices == ("cpu:0", "cpu:1") and (problem.kind == 0).all()


def test_transfers_between_kinds_are_means_over_pairs_of_devices() -> None:
    problem = problem_of("moirai.xls", "gpus:5")
    first, second = (problem.kind[each] for each in np.nonzero(~np.eye(5, dtype=bool)))
    assert problem.mean_transfers == pytest.approx(problem.arrays.table[:, first, second].mean(1))


def test_blank_lines_before_a_problem_are_left_out(tmp_path: Path) -> None:
    text = (FIXTURES / "doppler.txt").read_text()
    path = tmp_path / "doppler.txt"
    path.write_text("\n\n" + text)
    assert read_public_graph(path).num_nodes == read_public_graph(FIXTURES / "doppler.txt").num_nodes
    path.write_text(text.replace(text.splitlines()[2], "0.5", 1))
    with pytest.raises(ValueError, match="is no number of an operation"):
        read_public_graph(path)


def test_what_a_graph_on_a_machine_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = ["place", str(FIXTURES / "doppler.txt")]
    for arguments, words in (
        ([*graph, "--machine", "tpus:4"], "there is no simulated machine 'tpus:4'"),
        ([*graph, "--machine", "gpus:4000"], "want at most 1024"),
        ([*graph, "--machine", "gpus:2", "--seconds", "-1"], "--seconds is -1.0"),
        ([*graph, "--machine", "gpus:2", "--proof", "-1"], "--proof is -1.0, want 0 or more"),
        ([*graph, "--out", str(tmp_path)], "of the format doppler, which needs a machine; add --machine"),
        (["place", str(tmp_path / "none"), "--machine", "gpus:2"], "there is no such file"),
    ):
        assert main(arguments) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("gst: error: ") and words in last, last


def test_the_command_writes_the_trace_of_the_plan(tmp_path: Path) -> None:
    command = ["place", str(FIXTURES / "doppler.txt"), "--machine", "gpus:2", "--seconds", "0", "--proof", "0"]
    command += ["--policy", "none", "--out", str(tmp_path), "--trace", str(tmp_path / "plan.trace.json")]
    assert main(command) == 0
    events = json.loads((tmp_path / "plan.trace.json").read_text())["traceEvents"]
    record = json.loads((tmp_path / "plan.json").read_text())
    spans = {event["name"]: (event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    for node, device, begin in zip(record["nodes"], record["placement"], record["begin"], strict=True):
        assert spans[str(node)] == (device, pytest.approx(1e3 * begin))


@pytest.mark.parametrize("seed", range(3))
def test_the_trace_of_a_schedule_obeys_the_laws_of_its_format(seed: int) -> None:
    problem = problem_of("doppler.txt")
    schedule = Schedule(problem, np.random.default_rng(seed).integers(2, size=problem.num_nodes))
    names = [str(each) for each in problem.graph.ids]
    check_trace(trace_of_schedule(problem, schedule), [(names[a], names[b]) for a, b in problem.graph.edges.T.tolist()])


def test_a_graph_of_msr_is_placed_by_its_published_latency(tmp_path: Path) -> None:
    """A chain of six operators, thrice as fast on the one accelerator, whose memory holds four of them."""
    nodes = [
        {"id": n, "cpuLatency": 3.0, "fpgaLatency": 1.0, "supportedOnFpga": 1, "size": 10.0, "isBackwardNode": 0}
        for n in range(6)
    ]
    edges = [{"sourceId": n, "destId": n + 1, "cost": 0.5} for n in range(5)]
    path, out, result = tmp_path / "chain.json", tmp_path / "out", tmp_path / "result.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges, "maxFPGAs": 1, "maxCPUs": 2, "maxSizePerFPGA": 40.0}))
    command = ["place", str(path), "--evaluations", "60", "--proof", "1", "--out", str(out), "--json", str(result)]
    assert main(command) == 0
    placed = json.loads(result.read_text())
    # Four on the accelerator at one end, one value on the way: 4 * 1 + 0.5 + 2 * 3.
    assert placed["objective"] == pytest.approx(10.5) and placed["lower_bound"] <= 10.5
    assert (np.array(Plan.load(out / "plan.json").placement) >= 2).sum() == 4
