"""A graph without an accelerator: calls are recorded with their tensors, and a replay makes them again in place."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gst.method import readouts


class RecordedGraph(TorchDispatchMode):
    """Does on a CPU what a graph of an accelerator does: a replay reads and writes where its recording did.

    Attributes:
        calls: operator, arguments and results of each, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def capture_begin(self) -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(self.own(args, kwargs, result), self.own(args, kwargs, again), strict=True):
                old.copy_(new)

    def spoil(self) -> None:
        """Overwrite all that the recording has made, so that whoever reads it before a replay computes nonsense."""
        for _, args, kwargs, result in self.calls:
            for tensor in self.own(args, kwargs, result):
                tensor.fill_(float("nan") if tensor.is_floating_point() else 1)

    @staticmethod
    def own(args: Any, kwargs: Any, result: Any) -> list[Tensor]:
        """Results that are no views of arguments, nor arguments themselves."""
        storages = {each.untyped_storage()._cdata for each in pytree.tree_leaves((args, kwargs)) if is_tensor(each)}
        tensors = [each for each in pytree.tree_leaves(result) if is_tensor(each)]
        return [each for each in tensors if each.untyped_storage()._cdata not in storages]


class Spoilt(RecordedGraph):
    """What its recording has made is overwritten before each replay."""

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self.spoil()
        with torch.no_grad(), torch.autocast("cpu", enabled=False):  # kernels are launched as they were recorded
            super().replay()


def pooled(states: Any, batch: Any, pooling: Any) -> Tensor:
    """`pool_nodes` without kernels of the CPU alone, which cannot be recorded."""
    total = readouts._pool_owned_with_torch(states, batch, pooling)
    return total / batch.node_counts[:, None, None] if pooling == "mean" else total


class Unrecorded(RecordedGraph):
    """There is no memory to record it."""

    def capture_begin(self) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class Recorder:
    """Makes such graphs, and keeps them; what would be number `failing` cannot be recorded."""

    def __init__(self, failing: int | None = None) -> None:
        self.graphs: list[RecordedGraph] = []
        self.pools: list[Any] = []
        self.failing = failing

    def __call__(self, device: torch.device, pool: Any) -> RecordedGraph:
        if len(self.graphs) == self.failing:
            return Unrecorded()
        self.graphs.append(RecordedGraph())
        self.pools.append(pool)
        return self.graphs[-1]


class Operators(TorchDispatchMode):
    """Counts calls by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[function] += 1
        return function(*args, **(kwargs or {}))


def counted(call: Callable[[], Any]) -> Counter[Any]:
    with Operators() as mode:
        call()
    return mode.counts
