"""Devices of this machine, how fast they are, and plans of programs run or simulated on them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# ruff: noqa: F401  (names for type checkers; `__getattr__` loads them)
if TYPE_CHECKING:
    from gst.devices.describe.load import LoadGate, LoadMeter
    from gst.devices.describe.machine import Device, discover, machine_record, overlap, select
    from gst.devices.execute.calls import eager, pytorch
    from gst.devices.execute.costs import profile
    from gst.devices.execute.executor import AnyExecutor, Executor, Transfers, executor
    from gst.devices.execute.graph_executor import GraphExecutor
    from gst.devices.execute.groups import fused
    from gst.devices.execute.isolated import IsolatedExecutor, measure_plans
    from gst.devices.execute.measure import Log, Measurement, measure
    from gst.devices.execute.native import NativeExecutor
    from gst.devices.execute.plain import PlainPyTorch
    from gst.devices.fusion.grouping import convex_segments, pointwise_chains
    from gst.devices.fusion.legality import fusion_groups, legalise
    from gst.devices.plan import ExecutionError, Plan, Timeline

_MODULES = {
    "describe.load": ("LoadGate", "LoadMeter"),
    "describe.machine": ("Device", "discover", "machine_record", "overlap", "select"),
    "execute.calls": ("eager", "pytorch"),
    "execute.costs": ("profile",),
    "execute.executor": ("AnyExecutor", "Executor", "Transfers", "executor"),
    "execute.graph_executor": ("GraphExecutor",),
    "execute.groups": ("fused",),
    "execute.isolated": ("IsolatedExecutor", "measure_plans"),
    "execute.measure": ("Log", "Measurement", "measure"),
    "execute.native": ("NativeExecutor",),
    "execute.plain": ("PlainPyTorch",),
    "fusion.grouping": ("convex_segments", "pointwise_chains"),
    "fusion.legality": ("fusion_groups", "legalise"),
    "plan": ("ExecutionError", "Plan", "Timeline"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Load a public name when it is touched: most need torch, numba or the compiled interpreter."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
