"""Placement of a program on devices: baselines, searches, learned policies, real measurements, and `gst.place`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.devices.plan import Plan
    from gst.placement.machines import machine
    from gst.placement.objective import Budgeted, MeasuredObjective, Measurer, Objective, SimulatedObjective
    from gst.placement.outcome import PlacementResult, Settings
    from gst.placement.pipeline import place_measured
    from gst.placement.place_on_costs import place_graph, place_simulated
    from gst.placement.placed import Placed, place
    from gst.placement.plan_files import load_plan, save_plan
    from gst.placement.planning import Planned, plan_all
    from gst.placement.search import Search
    from gst.placement.task import Task

__all__ = [
    "Budgeted", "MeasuredObjective", "Measurer", "Objective", "Placed", "PlacementResult", "Plan", "Planned", "Search",
    "Settings", "SimulatedObjective", "Task", "load_plan", "machine", "place", "place_graph", "place_measured",
    "place_simulated", "plan_all", "save_plan",
]  # fmt: skip

_MODULES = {
    "gst.devices.plan": ("Plan",),
    "gst.placement.machines": ("machine",),
    "gst.placement.objective": ("Budgeted", "MeasuredObjective", "Measurer", "Objective", "SimulatedObjective"),
    "gst.placement.outcome": ("PlacementResult", "Settings"),
    "gst.placement.pipeline": ("place_measured",),
    "gst.placement.place_on_costs": ("place_graph", "place_simulated"),
    "gst.placement.placed": ("Placed", "place"),
    "gst.placement.plan_files": ("load_plan", "save_plan"),
    "gst.placement.planning": ("Planned", "plan_all"),
    "gst.placement.search": ("Search",),
    "gst.placement.task": ("Task",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is touched."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
