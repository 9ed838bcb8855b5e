"""Count the files that one path through the code enters: those with a function that the path calls.

    python -m experiments.files_entered fit|place|drop_in|step [--list]

`fit` is a small `gst fit`, `place` is `gst place` until it first measures a plan, `drop_in` is a model under
`GraphSegmentTraining` with a table, from cutting its graphs to its first training step, and `step` its second step
alone. Files of gst, partitioners and embedding_cache count; those that are only imported, or run as compiled code, do
not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(str(ROOT / name) + "/" for name in ("gst", "partitioners", "embedding_cache"))
CONFIG = ROOT / "experiments" / "configs" / "giant_synthetic.yaml"


class MeasurementBegins(Exception):
    """Ends the path of `gst place`: the first plan is about to be measured."""


def is_import(frame: FrameType | None) -> bool:
    """True if a call belongs to the import of a module: decorators and tables at its top are no part of a path."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def entered(last: str = "") -> Iterator[Counter[str]]:
    """Count the calls of functions of each file, in all threads, until the context ends or a function named `last` is
    called."""
    calls: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = event == "call" and code.co_filename.startswith(PACKAGES) and code.co_flags & CO_OPTIMIZED
        if is_function and not is_import(frame):
            calls[str(Path(code.co_filename).relative_to(ROOT))] += 1
            if code.co_name == last:
                raise MeasurementBegins

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield calls
    except MeasurementBegins:
        pass
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def fit() -> Counter[str]:
    """Files of `gst fit` with the configuration of the README, on a small graph."""
    from gst.cli import main

    with tempfile.TemporaryDirectory() as folder, entered() as calls:
        small = ["--data.source.init_args.num_nodes", "20000", "--data.store", f"{folder}/stores"]
        small += ["--trainer.max_epochs", "1", "--trainer.default_root_dir", folder]
        assert main(["fit", "--config", str(CONFIG), *small]) == 0
    return calls


def place() -> Counter[str]:
    """Files of `gst place` before the first plan is measured."""
    from gst.cli import main

    with tempfile.TemporaryDirectory() as folder, entered("measure_plans") as calls:
        program = "rnnlm:layers=1,hidden=32,steps=4"
        main(["place", program, "--devices", "cpu:0,cpu:1", "--budget", "4", "--patience", "0", "--out", folder])
        raise RuntimeError("gst place ended before it measured a plan")
    return calls


def drop_in(steps: int = 1) -> Counter[str]:
    """Files of a model under `GraphSegmentTraining` with a table: graphs are cut, and one step is trained."""
    import torch

    import gst
    from experiments.drop_in import graphs, plain_torch_gst

    examples = graphs.families(8)
    with entered() as calls:
        batch = next(iter(plain_torch_gst.batches(examples)))
        network, head = plain_torch_gst.Network(), torch.nn.Linear(32, 5)
        model = gst.GraphSegmentTraining(network, head, keep_probability=0.5, table=gst.EmbeddingTable(1, 32))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            earlier = Counter(calls)
            torch.nn.functional.cross_entropy(*plain_torch_gst.outputs_and_labels(model, batch)).backward()
            optimizer.step()
    return calls if steps == 1 else calls - earlier


PATHS: dict[str, Callable[[], Counter[str]]] = {
    "fit": fit, "place": place, "drop_in": drop_in, "step": partial(drop_in, steps=2),
}  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("path", choices=PATHS)
    parser.add_argument("--list", action="store_true", help="name them, with their calls")
    options = parser.parse_args()
    files = PATHS[options.path]()
    if options.list:
        print(*(f"{calls:>9,}  {name}" for name, calls in sorted(files.items())), sep="\n")
    print(f"{options.path}: {len(files)} files")
