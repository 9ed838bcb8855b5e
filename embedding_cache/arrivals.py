"""Values on their way from an accelerator to the host, which does not wait for them before it needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

About = TypeVar("About")
MOST_AHEAD = 4  # values on their way: the host prepares so many steps before the device has computed them


class OnHost:
    """The value of a tensor on its way to the host, which does not wait for the accelerator before it is needed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._arrived = tensor, None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            self._arrived = torch.cuda.current_stream(tensor.device).record_event()

    def value(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor

    def has_arrived(self) -> bool:
        return self._arrived is None or self._arrived.query()


class Arrivals(Generic[About]):
    """Values of one step after another, each with what it is about.

    Examples:
        >>> arrivals = Arrivals[str]()
        >>> arrivals.add(torch.tensor(0.5), "the first step")
        >>> list(arrivals.here())
        [(tensor(0.5000), 'the first step')]
    """

    def __init__(self) -> None:
        self._underway = deque[tuple[OnHost, About]]()

    def add(self, value: Tensor, about: About) -> None:
        self._underway.append((OnHost(value), about))

    def here(self, waits: bool = False) -> Iterator[tuple[Tensor, About]]:
        """Take the values that have arrived, in order; all of them if the host `waits`, as it does for the oldest if
        more than `MOST_AHEAD` are on their way."""
        while self._underway and (waits or len(self._underway) > MOST_AHEAD or self._underway[0][0].has_arrived()):
            value, about = self._underway.popleft()
            yield value.value(), about
