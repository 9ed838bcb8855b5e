"""Steps whose operations do harm only where they run on another thread than the first: some of their plans run."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gst.programs import Step

_first = 0


def _mark() -> None:
    global _first
    _first = threading.get_ident()


def _crash() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    time.sleep(1000)


def _fail() -> None:
    raise RuntimeError("not on this thread")


def _grow() -> None:
    torch.ones(2**24)  # 64 MiB


def _lie() -> int:
    return 1


def _operator(harm: Callable[[], int | None]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        harmed = harm is _mark or threading.get_ident() != _first
        return x + ((harm() or 0) if harmed else 0)

    made = torch.library.custom_op(f"gst_test::{harm.__name__[1:]}", function, mutates_args=())
    made.register_fake(torch.empty_like)
    return made


MARK, CRASH, HANG, FAIL, GROW, LIE = map(_operator, (_mark, _crash, _hang, _fail, _grow, _lie))


def step() -> Step:
    return Step("fragile", lambda x: LIE(GROW(FAIL(HANG(CRASH(MARK(x)))))), (torch.ones(64),))
