"""Random programs and PyTorch's own operators, run by gst and by PyTorch: equal results, or a refusal in one line.

    python -m experiments.bench fuzz_programs --programs 2000 --operators 300 --json runs/fuzz_programs.json

A program (`tests/programs/generator.py`) runs by each of its runners. An operator runs forward and backward by
`torch.compile(backend="gst")`, on PyTorch's own samples for it (opinfo). A step with a random state
(`tests/kernels/states.py`) runs in place, compiled. A run goes on with a file of the same seed.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from tqdm import tqdm

from gst.util.untrusted import read_object
from gst.util.writing import write_json

ROOT = Path(__file__).parents[2]
KEPT = 20  # findings that are written out
SAVED_EVERY_S = 10.0
STATES = 0.15  # steps in place for each program
OUTCOMES = ("equal", "refused", "wrong", "crashed", "invalid")


HELP = {"programs": "by each runner", "operators": "of PyTorch", "runners": "only these (default: all)"}


def run(
    programs: int = 2000,
    operators: int = 300,
    seed: int = 0,
    runners: tuple[str, ...] = (),
    json: Path = Path("experiments/results/fuzz_programs.json"),
) -> dict[str, Any]:
    """Run what `json` lacks, save as it goes, and return the counts of each outcome by runner, with the findings."""
    sys.path.append(str(ROOT))
    known = dict(read_object(json)) if json.exists() else {}
    result = known if known.get("seed") == seed else {"seed": seed, "outcomes": {}, "findings": []}
    result["command"] = f"python -m experiments.bench fuzz_programs --programs {programs} --operators {operators}"
    result["torch"] = torch.__version__
    saved = time.monotonic()
    checks = [
        *_of_programs(programs, seed, runners),
        *_of_states(int(STATES * programs), seed),
        *_of_operators(operators),
    ]
    done = {name: sum(counts.values()) for name, counts in result["outcomes"].items()}
    with tqdm(total=len(checks), unit=" checks", smoothing=0.05) as bar:
        for runner, what, check in checks:
            bar.update()
            if done.get(runner, 0) > 0:
                done[runner] -= 1
                continue
            outcome, words = _outcome(check)
            counts = result["outcomes"].setdefault(runner, dict.fromkeys(OUTCOMES, 0))
            counts[outcome] += 1
            if outcome in ("wrong", "crashed") and len(result["findings"]) < KEPT:
                result["findings"].append({"runner": runner, "what": what, "outcome": outcome, "words": words})
            if time.monotonic() - saved > SAVED_EVERY_S:
                write_json(json, result)
                saved = time.monotonic()
    write_json(json, result)
    return result


Check = Callable[[], str | None]  # returns the difference, empty if there is none, or None if PyTorch does not run it


def _outcome(check: Check) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check()
    except ValueError as error:
        return ("crashed" if "\n" in str(error) else "refused"), str(error)[:500]
    except Exception as error:  # whatever goes wrong is a finding
        return "crashed", f"{type(error).__name__}: {error}"[:500]
    return ("invalid", "") if found is None else ("wrong" if found else "equal", found)


def _of_programs(count: int, seed: int, runners: Sequence[str]) -> Iterator[tuple[str, str, Check]]:
    """Yield checks, each program by every runner; the runner that compiles also learns."""
    from tests.programs.generator import RUNNERS, Trial, difference, is_valid, source

    def check(trial: Trial, runner: str) -> str | None:
        gradients = trial.training and runner == "backend"
        return difference(trial, RUNNERS[runner], gradients) if is_valid(trial, gradients) else None

    for runner in runners or RUNNERS:
        for number in range(count):
            trial = source(random.Random(f"{seed} {number}").randrange)
            yield runner, f"program {number}", lambda trial=trial, runner=runner: check(trial, runner)


def _of_states(count: int, seed: int) -> Iterator[tuple[str, str, Check]]:
    from tests.kernels.states import source, step_of, wrong

    for number in range(count):
        text = source(random.Random(f"{seed} {number}").randrange)
        yield "states", f"step {number}", lambda text=text: wrong(step_of(text))


def _of_operators(count: int) -> Iterator[tuple[str, str, Check]]:
    """Yield checks of operators with gradients, every n-th of PyTorch's, with up to two of its samples."""
    if not count:
        return
    from torch.testing._internal.common_methods_invocations import op_db

    able = [each for each in op_db if each.supports_autograd and torch.float32 in each.dtypes]
    for info in able[:: max(len(able) // count, 1)][:count]:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        yield "operators", name, lambda info=info: _operator_difference(info)


def _operator_difference(info: Any) -> str | None:
    torch.manual_seed(0)
    samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=True))
    for sample in samples[:: max(len(samples) // 2, 1)][:2]:
        leaves, form = pytree.tree_flatten((sample.input, tuple(sample.args), sample.kwargs))

        def call(*tensors: Any, form: Any = form) -> Any:
            first, rest, named = pytree.tree_unflatten(list(tensors), form)
            return info.op(first, *rest, **named)

        try:
            want = _passes(call, leaves)
        except Exception:  # PyTorch itself does not run this sample alone
            return None
        torch._dynamo.reset()
        got = _passes(torch.compile(call, backend="gst", options={"seconds": 1}), leaves)
        for a, b in zip(got, want, strict=True):
            try:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
            except AssertionError as error:
                return " ".join(str(error).split())[:200]
    return ""


def _passes(call: Callable[..., Any], leaves: list[Any]) -> list[Any]:
    """Return the outputs of a call and the gradients of its inputs, with the same random numbers each time."""
    own = [
        each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, Tensor) else each
        for each in leaves
    ]
    torch.manual_seed(1)
    outputs = [each for each in pytree.tree_leaves(call(*own)) if isinstance(each, Tensor)]
    tops = [each for each in outputs if each.requires_grad]
    inputs = [each for each in own if isinstance(each, Tensor) and each.requires_grad]
    gradients: tuple[Any, ...] = ()
    if tops and inputs:
        gradients = torch.autograd.grad([each.abs().square().sum() for each in tops], inputs, allow_unused=True)
    return [*(each.detach() for each in outputs), *gradients]
