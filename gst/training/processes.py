"""Training with several processes: loss weights, reduction of logged values, timeouts of collectives, FSDP2."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gst.data.loader import Step
from gst.method.draws import Peers
from gst.util.process import SIGNALS
from gst.util.untrusted import plain

Entry = TypeVar("Entry")
GRACE = 10.0  # seconds from a signal to the end of a process that goes on waiting for others
LIBRARIES = ("torch", "lightning", "threading", "contextlib")
COLLECTIVE = ("torch.distributed", "embedding_cache.sharded")


def share_of(step: Step, peers: Peers, loss: str) -> float:
    """Return the weight of a process's loss, such that the mean over processes is the loss of all graphs together.

    It is the share of the terms that the loss averages, times the number of processes; 0 for an idle process."""
    total = _terms(peers.targets, loss)
    return 0.0 if peers.idle or not total else _terms(step.targets, loss) / total * peers.world_size


def _terms(targets: Tensor, loss: str) -> int:
    """Pairs with different targets within a graph where the loss compares pairs, else targets."""
    if loss not in ("pairwise_hinge", "diff_mat"):
        return int((~targets.isnan()).sum())
    return int((targets[:, :, None] > targets[:, None, :]).sum())


def gathered(own: Sequence[Entry]) -> list[Entry]:
    """Gather lists of all processes: the first entry of each process, then the second of each, ...

    Examples:
        >>> gathered([1, 2])  # one process alone
        [1, 2]
    """
    if not (dist.is_available() and dist.is_initialized()):
        return list(own)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, list(own))
    longest = max(map(len, every))
    return [entries[place] for place in range(longest) for entries in every if place < len(entries)]


def reduced(own: Mapping[str, tuple[float, Callable[[list[float]], float]]]) -> dict[str, float]:
    """Reduce each named value over all processes, by a function such as `max`; a collective. Logged values come from
    here or are equal on all processes: with `sync_dist` Lightning reduces a value when it is read, and the progress
    bar, which reads it, exists on the first process alone.

    Examples:
        >>> reduced({"memory": (3.0, max), "speed": (2.0, sum)})
        {'memory': 3.0, 'speed': 2.0}
    """
    every = gathered([{name: value for name, (value, _) in own.items()}])
    return {name: reduce([each[name] for each in every]) for name, (_, reduce) in own.items()}


# Timeouts and signals --------------------------------------------------------------------------------------------


def limit_waits(trainer: L.Trainer, seconds: float) -> None:
    """Set the timeout of all collectives of a training; `waits_explained` turns the error into a message."""
    if isinstance(trainer.strategy, DDPStrategy):
        trainer.strategy._timeout = timedelta(seconds=seconds)


@contextmanager
def waits_explained() -> Iterator[None]:
    """Raise an error with the rank and the line of code for a collective that fails within the context.

    Raises:
        TimeoutError: the other processes did not come to a collective in time.
        ConnectionError: another process ended, or cannot be reached.
    """
    try:
        yield
    except RuntimeError as error:  # gloo has no class of errors of its own
        text = str(error)
        if not (isinstance(error, dist.DistError) or "gloo" in text or "Connection closed by peer" in text):
            raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        where, who = _place(frames), _process()
        if "imed out" in text or "imeout" in text:
            raise TimeoutError(
                f"{who} waited too long for the others in {where}; look at their messages, and if they were still at "
                f"work raise --collective_timeout ({plain(error)})"
            ) from error
        raise ConnectionError(f"{who} lost the others in {where}; look at their messages ({plain(error)})") from error


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end a process that waits in a collective, within which Python runs no signal handler: a
    thread ends the process if its main thread is in the same call `GRACE` seconds after a signal, or a second after a
    further one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)


def _watch(signals: int) -> None:
    """Body of the thread: read signal numbers until the pipe is closed."""
    main, patience = threading.main_thread().ident or 0, GRACE
    while number := os.read(signals, 1):
        if number[0] not in SIGNALS:
            continue
        frame = sys._current_frames().get(main)
        if frame is not None and _still_waits(frame, main, patience):
            name = signal.Signals(number[0]).name
            where = _place([each for each, _ in traceback.walk_stack(frame)][::-1])
            print(f"gst: stopped by {name}: {_process()} waited for the others in {where}", file=sys.stderr, flush=True)
            os._exit(128 + number[0])
        patience = 1.0


def _still_waits(frame: FrameType, thread: int, seconds: float) -> bool:
    """True if `thread` stays in one collective, or in another call without using the CPU, for so many seconds."""
    instruction, clock = frame.f_lasti, time.pthread_getcpuclockid(thread)
    began, used, since = time.monotonic(), time.clock_gettime(clock), 0.0
    while sys._current_frames().get(thread) is frame and frame.f_lasti == instruction:
        if (since := time.monotonic() - began) >= seconds:
            break
        time.sleep(0.05)
    else:
        return False
    collective = frame.f_globals.get("__name__", "").startswith(COLLECTIVE)
    idle = time.clock_gettime(clock) - used < since / 10
    return collective or (dist.is_available() and dist.is_initialized() and idle)


def _place(frames: Sequence[FrameType]) -> str:
    """Module, line and function of the innermost frame outside libraries; `frames` are ordered inwards."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    callers = [i for i, name in enumerate(modules) if name != __name__ and name.split(".")[0] not in LIBRARIES]
    last = frames[callers[-1]] if callers else frames[-1]
    return f"{last.f_globals.get('__name__')}, line {last.f_lineno} ({last.f_code.co_name})"


def _process() -> str:
    rank, size = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")), os.environ.get("WORLD_SIZE", "1")
    if dist.is_available() and dist.is_initialized():
        rank, size = str(dist.get_rank()), str(dist.get_world_size())
    return f"process {rank} of {size}"


class FullySharded(DDPStrategy):
    """FSDP2 (`torch.distributed.fsdp.fully_shard`; Zhao et al., PyTorch FSDP, VLDB 2023): `--trainer.strategy fsdp2`.

    Between steps a process keeps its part of each parameter, gradient and state of the optimizer. Parameters are
    gathered all together, once a step and once an evaluation, since processes encode different numbers of segments.
    As with `ddp`, each process has to use all of them in each step. Checkpoints hold whole tensors and do not depend on
    the number of processes. A trained model stays in parts: evaluate its checkpoint in another process.
    """

    def configure_ddp(self) -> None:
        """Shard the parameters when training begins; a parameter without an axis is a ValueError."""
        if self._in_parts:
            raise ValueError("this model was trained in parts; go on from its checkpoint in another process")
        if scalars := [name for name, each in self._estimator.named_parameters() if not each.ndim]:
            raise ValueError(f"fsdp2 cannot divide parameter {scalars[0]}, which has no axis; give it one of length 1")
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nobody changes
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        whole = list(self._estimator.parameters())
        _send_from_first([*whole, *self._estimator.buffers()])
        fully_shard(self._estimator, mesh=mesh, reshard_after_forward=False)
        self._parts = dict(zip(whole, self._estimator.parameters(), strict=True))

    def setup_optimizers(self, trainer: L.Trainer) -> None:
        """Replace whole parameters by their shards in the optimizers, which may have no state yet."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            if optimizer.state:
                raise ValueError(f"{type(optimizer).__name__} remembers whole parameters; use --trainer.strategy ddp")
            for group in optimizer.param_groups:
                group["params"][:] = [self._parts.get(each, each) for each in group["params"]]
        self._parts.clear()

    def teardown(self) -> None:
        """Free gathered parameters, also after an error within a step."""
        if self.lightning_module is not None and self._in_parts:
            self._estimator.set_reshard_after_forward(True)  # else what was gathered stays
        super().teardown()

    def on_validation_start(self) -> None:
        """Gather all parameters before an evaluation: processes evaluate different numbers of graphs."""
        if self._in_parts:
            _send_from_first(self._estimator.buffers())  # of norms, which saw other graphs in each process
            self._estimator.unshard()

    def on_validation_end(self) -> None:
        if self._in_parts:
            self._estimator.reshard()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Collective; whole on the first process."""
        return self._whole(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Collective; whole on the first process."""
        return self._whole(super().optimizer_state(optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load optimizer states from a checkpoint of any strategy."""
        states = []
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            kept = {
                index: {name: _part(value, parameters[index]) for name, value in entry.items()}
                for index, entry in saved["state"].items()
            }
            states.append({**saved, "state": kept})
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": states})

    @property
    def _estimator(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.estimator

    @property
    def _in_parts(self) -> bool:
        return isinstance(self._estimator, FSDPModule)

    def _whole(self, value: Any) -> Any:
        if isinstance(value, DTensor):
            whole = value.full_tensor()
            return whole.cpu() if self.is_global_zero else None
        if isinstance(value, dict):
            return type(value)((name, self._whole(each)) for name, each in value.items())
        return value


def _part(value: Any, parameter: Tensor) -> Any:
    """Return this process's shard of an optimizer state tensor; step counters are not sharded."""
    if not (isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.ndim):
        return value
    if value.shape != parameter.shape:
        raise ValueError(f"the optimizer remembers {tuple(value.shape)} of {tuple(parameter.shape)}; use ddp instead")
    whole = value.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _send_from_first(tensors: Iterable[Tensor]) -> None:
    """Broadcast tensors in place from the first process."""
    for each in tensors:
        dist.broadcast(each.detach(), 0)


StrategyRegistry.register("fsdp2", FullySharded, "parameters in parts over the processes")
