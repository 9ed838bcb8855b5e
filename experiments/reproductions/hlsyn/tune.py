"""Search for the fastest design of one kernel with a cost model, compared with other searches."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.reproductions.hlsyn.cycles import Candidates
    from experiments.reproductions.hlsyn.source import HlsKernel

AFTER = (20, 50, 100)
LEARNED_FROM = 200  # designs of each other kernel


def add_arguments(tune: argparse.ArgumentParser) -> None:
    """Add the arguments of `tune`, except `--data`."""
    tune.add_argument("kernel", help="name of the kernel, such as gemm-blocked, or `list`")
    tune.add_argument("--tool", choices=("v18", "v20"), default="v20", help="version; default: %(default)s")
    tune.add_argument("--budget", type=int, default=100, help="designs of each search; default: %(default)s")
    tune.add_argument("--seeds", type=int, default=1, help="searches of each method; default: %(default)s")
    tune.add_argument("--json", type=Path, help="write the result here")


def tune(options: argparse.Namespace) -> dict[str, Any]:
    """Search the designs of a kernel by every method, and print the regret of each; `list` prints the kernels.

    Raises:
        ValueError: the budget or the number of seeds is below 1, or the data hold no such kernel or no other family.
    """
    from experiments.reproductions.hlsyn.cycles import candidates_of, family
    from experiments.reproductions.hlsyn.source import read_kernels
    from gst.util.progress import bar

    if options.budget < 1 or options.seeds < 1:
        raise ValueError(f"--budget {options.budget} --seeds {options.seeds}: want numbers from 1")
    kernels = [each for each in read_kernels(options.data) if each.designs]
    if options.kernel == "list":
        return _list(kernels)
    named = [each for each in kernels if (each.name, each.tool) == (options.kernel, options.tool)]
    if not named:
        there = ", ".join(each.name for each in kernels if each.tool == options.tool)
        raise ValueError(f"{options.data} has no kernel {options.kernel!r} of {options.tool}; there are {there}")
    others = [each for each in kernels if family(each.name) != family(options.kernel)]
    if not others:
        raise ValueError(f"{options.data} holds only the family of {options.kernel}; the model learns from others")
    designs = candidates_of(named[0])
    known = [candidates_of(each, LEARNED_FROM) for each in bar(others, desc="other kernels")]
    return _searches(designs, known, options)


def _searches(designs: Candidates, known: list[Candidates], options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from experiments.reproductions.hlsyn.cycles import METHODS, regrets, search, train_prior
    from gst.util.progress import bar

    prior = train_prior(known)
    after = [count for count in AFTER if count < options.budget] + [options.budget]
    budget = min(options.budget, designs.num_designs)
    result: dict[str, Any] = {
        "kernel": designs.label, "designs": designs.num_designs, "valid": int(designs.is_valid.sum()),
        "best_cycles": float(2 ** np.nanmin(designs.log_cycles)), "learned_from": len(known), "methods": {},
    }  # fmt: skip
    print(f"{designs.label}: {designs.num_designs} designs, {result['valid']} valid, the best takes "
          f"{result['best_cycles']:,.0f} cycles; "
          f"the model has learned from {len(known)} programs of other families")  # fmt: skip
    print(f"{'cycles of the best design over the best of all, after':<54}" + "".join(f"{count:>8}" for count in after))
    with bar(total=len(METHODS) * options.seeds * budget, desc="designs", unit=" designs") as shown:
        for method in METHODS:
            runs, best = [], (np.inf, 0)
            for seed in range(options.seeds):
                order = search(designs, method, budget, seed, prior, lambda count: shown.update(count) and None)
                runs.append(regrets(designs, order, after))
                tried = order[designs.is_valid[order]]
                if len(tried):
                    fastest = int(tried[np.argmin(designs.log_cycles[tried])])
                    best = min(best, (float(designs.log_cycles[fastest]), fastest))
            means = {count: float(np.mean([run[count] for run in runs])) for count in after}
            result["methods"][method] = {
                "regret": means,
                "runs": runs,
                "cycles": float(2 ** best[0]) if np.isfinite(best[0]) else None,
                "point": dict(designs.points[best[1]]) if np.isfinite(best[0]) else None,
            }
            shown.clear()
            print(f"{method:<54}" + "".join(f"{2 ** means[count]:>7.2f}x" for count in after), flush=True)
    point = result["methods"]["model"]["point"]
    print("the model's best design: " + (", ".join(f"{name}={value!r}" for name, value in sorted(point.items()))
                                         if point is not None else "none was valid"))  # fmt: skip
    return result


def _list(kernels: list[HlsKernel]) -> dict[str, Any]:
    print(f"{'kernel':<24}{'tool':<6}{'designs':>8}{'valid':>8}")
    rows = [
        {"kernel": each.name, "tool": each.tool, "designs": len(each.designs),
         "valid": sum(design.is_valid for design in each.designs)}
        for each in kernels
    ]  # fmt: skip
    for row in rows:
        print(f"{row['kernel']:<24}{row['tool']:<6}{row['designs']:>8}{row['valid']:>8}")
    return {"kernels": rows}
