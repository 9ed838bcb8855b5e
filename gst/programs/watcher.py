"""Comparison of the state that a model's code reads, at each call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from torch import Tensor, nn

from gst.programs.untouched import ATTRIBUTE, Snapshot, Watch, is_part

_number: Callable[[dict[Any, Any]], int] | None = None  # of a dictionary, which each write changes
if sys.version_info < (3, 12):  # later some writes of attributes do not
    with suppress(ImportError):  # of another version of PyTorch
        from torch._C._dynamo.guards import dict_version as _number


class Watcher:
    """State that code reads, compared at each call: attributes, containers, globals and closures by identity, and
    tensors that are neither parameters nor buffers by version, too.

    Up to Python 3.11 a dictionary has a number that each write changes, so that an unchanged module takes one
    comparison; later each attribute is compared by identity.

    Examples:
        >>> model = nn.Softplus()
        >>> watcher = Watcher(model)
        >>> watcher.change(), setattr(model, "beta", 2), watcher.change()
        (None, None, 'beta changed or was replaced')
    """

    def __init__(self, root: Any) -> None:
        snapshot = Snapshot([root], copies=False)
        modules = [each for each in snapshot._objects.values() if isinstance(each, nn.Module)]
        weights = {
            _address(each) for of in modules for table in (of._parameters, of._buffers) for each in table.values()
        }
        self._derived = snapshot._derived
        self._watches = [each for each in snapshot._watches if each.kind == ATTRIBUTE]
        tables = [each.table for each in self._watches if each.table is not None]
        unread = {
            id(each) for of in modules for key, each in vars(of).items()
            if key[0] == "_" and not key.endswith(("_forward_hooks", "_forward_pre_hooks"))
        }  # fmt: skip
        self._empty = [each for each in tables if not each and id(each) not in unread]
        self._tables = [each for each in tables if each]
        self._others = [each for each in self._watches if each.table is None]
        plain = [
            (name, each) for name, each in snapshot.tensors
            if _address(each) not in weights and not each.is_inference() and not is_part(name, self._derived)
        ]  # fmt: skip
        self._names, self._tensors = [name for name, _ in plain], [each for _, each in plain]
        self._counts = self._versions()
        self._values = self._now()

    def _versions(self) -> tuple[int, ...]:
        if _number is not None:
            return tuple(map(_number, self._tables))
        values: Callable[[Any], Iterable[Any]] = dict.values
        return (*map(len, self._tables), *map(id, chain.from_iterable(map(values, self._tables))))

    def _now(self) -> list[tuple[int, int]]:
        return [(each._version, _address(each)) for each in self._tensors]

    def change(self) -> str | None:
        """Name what changed; None if nothing did."""
        if self._tensors and (now := self._now()) != self._values:
            pairs = zip(self._names, now, self._values, strict=True)
            return next(f"{name} was written to" for name, new, old in pairs if new != old)
        counts = self._versions()
        if counts == self._counts and not any(self._empty):
            return self._first(self._others)
        change = self._first(self._watches)
        if change is None:
            self._counts = counts
        return change

    def _first(self, watches: Sequence[Watch]) -> str | None:
        for watch in watches:
            for key in watch.changed():
                name = watch.named(key)
                if not is_part(name, self._derived) and not str(key).startswith(("_dynamo", "_torchdynamo")):
                    return f"{name} changed or was replaced"
        return None


def _address(value: Tensor | None) -> int:
    with suppress(RuntimeError, NotImplementedError):  # of a sparse one, for example
        return 0 if value is None else value.data_ptr()
    return 0
