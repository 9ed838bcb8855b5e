"""Proofs of programs for accelerators on a machine without one: captured for CUDA, lowered, checked, run on fakes.

Each program is captured for CUDA, lowered for 1, 2 and 4 GPUs with the CPU with every operation anywhere, checked for
races, and run on fake tensors, which refuse operands on different devices. Nothing is computed, and nothing is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from experiments.reproductions.graphnet.module import module_of
from experiments.reproductions.graphnet.reader import FxSource, read_sources
from gst.execution.lanes import LaneExecutor
from gst.lowering.calls import storages
from gst.lowering.lower import stream_program
from gst.lowering.plan import Plan
from gst.lowering.race_check import check
from gst.machine.devices import Device
from gst.programs import WORKLOADS, Program, Reference, Step, capture, inference_step
from gst.programs.described import run_described
from gst.programs.workloads.hugging_face import PREFIX, hugging_face

ROOT = Path(__file__).parents[3]
MACHINES = ((1, 1), (1, 4), (2, 2), (4, 2))  # GPUs, and lanes of each
NEVER_ON_CPUS = "aten.histc"  # of whole numbers, as mixtures of experts count their tokens on GPUs
Say = Callable[[str], object]

LAYERS = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {"vocab_size": 50, "length": 8}
ENCODER = LAYERS | WORDS
MODELS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "albert": ENCODER | {"embedding_size": 16},
    "electra": ENCODER | {"embedding_size": 16},
    "distilbert": WORDS | {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "deberta-v2": ENCODER,
    "gpt2": WORDS | {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
    "gpt_neox": ENCODER,
    "llama": ENCODER | {"num_key_value_heads": 1},
    "qwen2": ENCODER | {"num_key_value_heads": 1},
    "mixtral": ENCODER | {"num_key_value_heads": 1, "num_local_experts": 4},
    "mamba": WORDS | {"num_hidden_layers": 2, "hidden_size": 16, "state_size": 4},
    "t5": WORDS | {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
    "vit": LAYERS | {"image_size": 8, "patch_size": 4},
}
"""Thirteen architectures of the transformers library, small; their training steps are by SGD."""


def steps_to_prove(
    names: Sequence[str] | None, samples: Path | None, is_full: bool = False
) -> tuple[dict[str, Callable[[], Step]], list[str]]:
    """Return the maker of each step by name, and the reasons for those that are skipped.

    Args:
        names: of workloads, and `transformers:bert` for one of `MODELS`; all of them and the samples if None.
        samples: archive or folder of GraphNet samples; they are read, not executed.
        is_full: workloads at their full size, not at that of the tests.

    Raises:
        ValueError: there is no such name, or no such file of samples.
    """
    sizes = {} if is_full else _small()
    every: dict[str, Callable[[], Step]] = {
        name: partial(workload, **sizes.get(name, {})) for name, workload in WORKLOADS.items()
    }
    every |= {f"{PREFIX}:{name}": partial(hugging_face, name, given) for name, given in MODELS.items()}
    if unknown := [name for name in names or () if name not in every]:
        raise ValueError(f"no workload {unknown[0]!r}; there are {', '.join(every)}")
    skipped: list[str] = []
    if names is None and samples is None:
        skipped.append("GraphNet samples (--samples FILE)")
    if names is None and find_spec("transformers") is None:
        names = list(WORKLOADS)
        skipped.append("training steps of transformers, which is not installed (extra 'models')")
    steps = {name: every[name] for name in names or every}
    if samples is not None:
        steps |= {f"graphnet:{source.name}": partial(sample_step, source) for source in read_sources(samples)}
    return steps, skipped


def _small() -> dict[str, dict[str, Any]]:
    tests = sys.modules.setdefault("tests", ModuleType("tests"))  # also where a package of that name is installed
    tests.__path__ = [str(ROOT / "tests")]
    from tests.programs.small import SMALL

    return SMALL


def sample_step(source: FxSource) -> Step:
    """The inference step of a GraphNet sample, which is read, not executed."""
    module, inputs = module_of(source)
    return inference_step(module, inputs, source.name)


def proven(name: str, make: Callable[[], Step], say: Say) -> dict[str, Any]:
    """Capture a step for CUDA, and lower, check and run it on fake tensors for each of `MACHINES`.

    Args:
        name: of the step, for the line.
        make: makes it.
        say: is told the outcome in a line.

    Returns:
        Operations, for each machine its steps and copies, and seconds; or `failed` with the reason.
    """
    began = time.perf_counter()
    try:
        program = capture(make(), kind="cuda")
        allocated, lowered, executors = storages(program), {}, []
        for gpus, lanes in MACHINES:
            devices = described(gpus, lanes)
            plan = scattered(program, devices)
            streams = stream_program(program, plan, devices, allocated)
            check(streams)
            executors.append(LaneExecutor(program, streams, devices))
            lowered[f"{gpus}x{lanes}"] = {"steps": streams.num_steps, "copies": int((streams.target >= 0).sum())}
        run_described(partial(run_on_fakes, program, executors))
    except Exception as error:  # the others go on
        say(f"{name:<42} failed: {str(error).splitlines()[0]}")
        return {"failed": str(error)}
    took = time.perf_counter() - began
    steps = sum(each["steps"] for each in lowered.values())
    say(f"{name:<42} {program.num_nodes:>6} nodes for CUDA; {steps:>7} steps on 1, 2, 4 GPUs right; {took:.0f} s")
    return {"nodes": program.num_nodes, "lowered": lowered, "seconds": round(took, 1)}


def described(gpus: int, lanes: int) -> list[Device]:
    """Streams of GPUs that need not be here, and the CPU."""
    streams = [
        Device(f"cuda:{number}/stream:{lane}", "cuda", (), 1, f"cuda:{number}", "described")
        for number in range(gpus)
        for lane in range(lanes)
    ]
    return [*streams, Device("cpu:0", "cpu", (), 1, "host", "described")]


def scattered(program: Program, devices: Sequence[Device], seed: int = 0) -> Plan:
    """Every operation anywhere that can run it: the plan with the most copies and events."""
    rng = np.random.default_rng(seed)
    names = tuple(device.name for device in devices)
    where = rng.integers(0, len(names), program.num_nodes)
    bound = [str(each.target).startswith(NEVER_ON_CPUS) for each in program.operations]
    where[bound] %= sum(device.is_accelerator for device in devices)
    return Plan(names, where, rng.integers(-5, 5, program.num_nodes))


def run_on_fakes(program: Program, executors: Sequence[LaneExecutor]) -> None:
    """Run each on fake tensors; outputs lie where its stream program leaves them, in the shapes of the program. To be
    called where CUDA devices are described: operations ask them which kernel they would take.

    Raises:
        ExecutionError: an operation reads values of different devices.
        ValueError: an output is elsewhere, or of another shape.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    for executor in executors:
        with FakeTensorMode(allow_non_fake_inputs=True):
            outputs = executor.run()
        home = dict(executor.streams.results.T.tolist())
        for output, value in zip(program.outputs, outputs, strict=True):
            if not isinstance(output, Reference):
                continue
            want = executor.devices[home[output.node]], program.operations[output.node].shapes[0]
            if (value.device, tuple(value.shape)) != want:
                raise ValueError(f"output {output.node} is {tuple(value.shape)} on {value.device}, want {want}")
