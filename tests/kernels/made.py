"""Kernel programs of random calls on random bytes, which need no compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gst.kernels.program import GENERATOR, Kernel, KernelProgram, Region, View
from gst.kernels.run import Run
from gst.lowering.plan import RECORD, RUN, WAIT, Ints

LENGTH = 16  # floats of a storage


def _mix(seed: float, *tensors: Tensor, count: int) -> None:
    """Write the last `count` tensors: a function of all others and of the seed, which differs where bytes differ."""
    reads, writes = tensors[: len(tensors) - count], tensors[len(tensors) - count :]
    total = sum((each.sum() for each in reads), torch.tensor(seed))
    for number, each in enumerate(writes):
        each.copy_(torch.cos(each.new_tensor(range(each.numel())) + total + number))


def _add(seed: float, *tensors: Tensor, count: int) -> None:
    """Add to the last `count` tensors."""
    total = sum((each.sum() for each in tensors[: len(tensors) - count]), torch.tensor(seed))
    for each in tensors[len(tensors) - count :]:
        each.add_(torch.sin(total))


def _make(seed: float, *tensors: Tensor) -> Tensor:
    """Return a tensor of its own memory."""
    return torch.sin(torch.arange(LENGTH) + sum((each.sum() for each in tensors), torch.tensor(seed)))


def random_program(rng: np.random.Generator, num_calls: int, num_storages: int = 8) -> KernelProgram:
    """Return calls that read, write, add to and make random parts of storages; each reads what was written before."""
    num_given = 2
    given = {each: torch.linspace(0, each + 1, LENGTH).untyped_storage() for each in range(num_given)}
    written = list(range(num_given))
    sizes = [LENGTH * 4] * num_storages
    kernels: list[Kernel] = []

    def part(storage: int) -> View:
        begin = int(rng.integers(0, LENGTH - 4))
        return View(storage, torch.float32, (int(rng.integers(1, LENGTH - begin + 1)),), (1,), begin)

    for number in range(num_calls):
        reads = [part(int(rng.choice(written))) for _ in range(rng.integers(1, 4))]
        kind = rng.choice(["mix", "add", "make"], p=[0.6, 0.25, 0.15])
        writes, makes = [], ()
        if kind == "make":
            makes, call = (len(sizes),), partial(_make, float(number))
            sizes.append(LENGTH * 4)
            written.append(makes[0])
        elif kind == "add":
            writes = [part(int(rng.choice(written)))]
            call = partial(_add, float(number), count=1)
        else:
            storage = int(rng.integers(num_given, num_storages))
            writes = [part(storage) if storage in written else View(storage, torch.float32, (LENGTH,), (1,), 0)]
            written += [storage] * (storage not in written)
            call = partial(_mix, float(number), count=1)
        regions = tuple(view.region for view in writes) + tuple(Region(each, 0, LENGTH * 4) for each in makes)
        read = tuple(view.region for view in (*reads, *(writes if kind == "add" else [])))
        draws = (Region(GENERATOR, 0, 1),) if rng.random() < 0.1 else ()
        kernels.append(Kernel(str(kind), "operator", call, (*reads, *writes), {}, read + draws, regions + draws, makes))
    outputs = tuple(
        View(each, torch.float32, (LENGTH,), (1,), 0)
        for each in sorted({*rng.choice(written, 3).tolist(), written[-1]})
    )
    inputs = tuple(View(each, torch.float32, (LENGTH,), (1,), 0) for each in range(num_given))
    return KernelProgram(
        "random", tuple(kernels), np.array(sizes, np.int64), given, inputs, outputs, torch.device("cpu"), "0" * 16
    )


def by_hand(program: KernelProgram) -> list[Tensor]:
    """Run the calls in order, each storage in memory of its own, and return copies of the outputs."""
    memory: dict[int, torch.UntypedStorage] = {
        storage: torch.zeros(int(size) // 4).untyped_storage() for storage, size in enumerate(program.storage_bytes)
    } | {storage: each.clone() for storage, each in program.given.items()}

    def tensor(value: Any) -> Any:
        return value.on(memory[value.storage], program.device) if isinstance(value, View) else value

    for kernel in program.kernels:
        result = kernel.call(*map(tensor, kernel.args))
        if kernel.makes:
            memory[kernel.makes[0]] = result.untyped_storage()
    return [tensor(view).clone() for view in program.outputs]


def fresh_inputs(program: KernelProgram) -> list[Tensor]:
    """Return copies of the inputs, so that runs that write to them begin alike."""
    return [view.on(program.given[view.storage].clone(), program.device) for view in program.inputs]


def in_order(run: Run, order: Ints) -> list[Any]:
    """Run the calls one after the other in an order of the steps that the events allow; return the outputs."""
    with torch.no_grad():
        for call in run.streams.argument[order[run.streams.kind[order] == RUN]].tolist():
            run._calls[call]()
    return run.outputs()


def on_threads(run: Run, before: Callable[[], object] = lambda: None) -> list[Any]:
    """Run each stream on a thread of its own, in which `before` is called first; return the outputs."""
    streams, errors = run.streams, list[BaseException]()
    events = [threading.Event() for _ in range(streams.num_events)]

    def work(number: int) -> None:
        try:
            before()
            with torch.no_grad():
                for step in range(streams.bounds[number], streams.bounds[number + 1]):
                    kind, argument = int(streams.kind[step]), int(streams.argument[step])
                    if kind == RUN:
                        run._calls[argument]()
                    elif kind == RECORD:
                        events[argument].set()
                    elif kind == WAIT:
                        events[argument].wait()
        except BaseException as error:
            errors.append(error)
            for event in events:
                event.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(streams.lanes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return run.outputs()
