"""Devices for what is placed where nobody names any: those where its tensors lie, so that its outputs stay there.

What lies in the host's memory is placed on the cores alone, in the sets that a machine without accelerators has. What
lies on an accelerator is placed on all devices of the machine, that accelerator first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from gst.machine.devices import Device, discover, with_core_sets
from gst.machine.topology import shared_domains


def own_devices(values: Any) -> list[Device]:
    """Devices of this machine for what computes with the tensors among some values.

    Args:
        values: weights and example inputs, in tuples, lists and dictionaries.

    Examples:
        >>> import torch
        >>> {device.kind for device in own_devices([torch.ones(2), {"seed": torch.tensor(0)}])}
        {'cpu'}
    """
    places = [each.device for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]
    here, place = discover(), next((each for each in places if each.type != "cpu"), None)
    if place is None:
        return with_core_sets([device for device in here if not device.is_accelerator], shared_domains())
    return sorted(
        with_core_sets(here, shared_domains()), key=lambda each: each.is_accelerator and each.torch_device != place
    )


def unused_accelerators(devices: Iterable[Device]) -> list[str]:
    """Names of the accelerators of this machine that are not among some devices."""
    names = {device.name for device in devices}
    return [each.name for each in discover() if each.is_accelerator and each.name not in names]


def unused_words(accelerators: Sequence[str]) -> str:
    """A line that says why accelerators were left out.

    Examples:
        >>> unused_words(["cuda:0"])
        "cuda:0 is here and was left out, as the model lies in the host's memory: move it there, or name devices"
    """
    names, verbs = ", ".join(accelerators), "are here and were" if len(accelerators) > 1 else "is here and was"
    return f"{names} {verbs} left out, as the model lies in the host's memory: move it there, or name devices"
