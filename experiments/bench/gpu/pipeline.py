"""A model in pipeline stages, one for each accelerator, by `torch.distributed.pipelining`: a process for each stage.

python -m experiments.bench.gpu.pipeline RANK STAGES STORE KIND SETTINGS.json    # out, of the last stage: JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from experiments.bench import child_environment
from gst.programs import outputs_differ

WAIT_S = 120.0


def pipelined(settings: Mapping[str, Any], kind: str, stages: int) -> dict[str, Any]:
    """Time a model (`experiments.bench.gpu.capped.model_of`) in so many stages.

    Args:
        settings: see `experiments.bench.gpu.capped.reports`; the batch is cut into as many parts as there are stages.
        kind: of the accelerators, stage i on that of number i; with `cpu` all stages share it.
        stages: at least 2.

    Returns:
        median_ms, and the reason if it was not timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(stages), str(Path(folder) / "store"), kind, json.dumps(settings)]
        command = [sys.executable, "-m", "experiments.bench.gpu.pipeline"]
        children = [
            subprocess.Popen(
                [*command, str(rank), *arguments], env=child_environment(), stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )
            for rank in range(stages)
        ]  # fmt: skip
        try:
            said = [child.communicate(timeout=WAIT_S) for child in children]
        except subprocess.TimeoutExpired:
            return {"median_ms": None, "reason": f"no end within {WAIT_S:g} s"}
        finally:
            for child in children:
                child.kill()
    for child, (_, words) in zip(children, said, strict=True):
        if child.returncode:
            return {"median_ms": None, "reason": (words.strip().splitlines() or ["no words"])[-1][:300]}
    return json.loads(said[-1][0].strip().splitlines()[-1])


def run_stage(rank: int, stages: int, store: Path, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One stage, and what the last one says of all of them."""
    from experiments.bench.gpu.capped import input_of, model_of

    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    if kind != "cpu":
        torch.accelerator.set_device_index(rank)
    backend = dist.get_default_backend_for_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=stages)
    model, x = model_of(settings["blocks"], settings["width"]), input_of(settings)
    begin, end = list(pairwise(np.linspace(0, settings["blocks"], stages + 1).astype(int).tolist()))[rank]
    part = len(x) // stages
    stage = PipelineStage(model[begin:end].to(device), rank, stages, device, input_args=(x[:part].to(device),))
    schedule, there, times = ScheduleGPipe(stage, stages), x.to(device), []
    output: Any = None
    with torch.no_grad():
        for _ in range(settings["repetitions"] + 1):
            dist.barrier()
            start = time.perf_counter()
            output = schedule.step(there) if rank == 0 else schedule.step()
            if kind != "cpu":
                torch.accelerator.synchronize(device)
            dist.barrier()
            times.append((time.perf_counter() - start) * 1e3)
    reason = ""
    if rank == stages - 1:
        with torch.no_grad():
            want = model_of(settings["blocks"], settings["width"])(x)
        reason = outputs_differ([output], [want]) or ""
    dist.destroy_process_group()
    return {"median_ms": None if reason else float(np.median(times[1:])), "reason": reason}


if __name__ == "__main__":
    rank, stages, store, kind, settings = sys.argv[1:]
    row = run_stage(int(rank), int(stages), Path(store), kind, json.loads(settings))
    if int(rank) == int(stages) - 1:
        print(json.dumps(row), flush=True)
