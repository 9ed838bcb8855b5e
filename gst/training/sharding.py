"""Parameters, gradients and states of optimizers in parts over the processes, for large encoders."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


class FullySharded(DDPStrategy):
    """FSDP2 (`torch.distributed.fsdp.fully_shard`; Zhao et al., PyTorch FSDP, VLDB 2023), on any device:
    `--trainer.strategy fsdp2`.

    Between steps a process keeps its part of each parameter, gradient and state of the optimizer. Parameters are
    gathered once a step and once an evaluation, all together: processes encode different numbers of segments, so that a
    layer by itself would be asked for more often here than there. As with `ddp`, each process has to use all of them in
    each step. Checkpoints hold whole tensors and do not depend on the number of processes or on the strategy. What was
    trained stays in parts: evaluate its checkpoint in another process.
    """

    def configure_ddp(self) -> None:
        """Where a training begins; `setup_optimizers` comes next.

        Raises:
            ValueError: a parameter has no axis, or they are in parts already.
        """
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
        """LightningCLI has made optimizers when parameters were whole.

        Raises:
            ValueError: an optimizer remembers something of them.
        """
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            if optimizer.state:
                raise ValueError(f"{type(optimizer).__name__} remembers whole parameters; use --trainer.strategy ddp")
            for group in optimizer.param_groups:
                group["params"][:] = [self._parts.get(each, each) for each in group["params"]]
        self._parts.clear()

    def teardown(self) -> None:
        """Also where an error ended a step half-way."""
        if self.lightning_module is not None and self._in_parts:
            self._estimator.set_reshard_after_forward(True)  # else what was gathered stays
        super().teardown()

    def on_validation_start(self) -> None:
        """Processes evaluate different numbers of graphs, so parameters are gathered before all of them. Where nothing
        was trained they are whole."""
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
        """From a checkpoint of any strategy."""
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
    """This process's part of what an optimizer remembers of a parameter; counters are whole.

    Raises:
        ValueError: it is not shaped as the parameter.
    """
    if not (isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.ndim):
        return value
    if value.shape != parameter.shape:
        raise ValueError(f"the optimizer remembers {tuple(value.shape)} of {tuple(parameter.shape)}; use ddp instead")
    whole = value.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _send_from_first(tensors: Iterable[Tensor]) -> None:
    """Make them those of the first process."""
    for each in tensors:
        dist.broadcast(each.detach(), 0)


StrategyRegistry.register("fsdp2", FullySharded, "parameters in parts over the processes")
