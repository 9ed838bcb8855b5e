"""Placement of a program on devices: baselines, searches, learned policies, real measurements, and `gst.place`.

A `Task` (operations, costs, devices) goes in; a `Plan` with its measurements comes out. Read `task.py` first, then
`loop.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.lowering.plan import Plan
    from gst.placement.api.place import PlacedFunction, place
    from gst.placement.api.placed import Placed
    from gst.placement.api.saving import load
    from gst.placement.loop import Loop
    from gst.placement.machines import machine
    from gst.placement.measured import place_measured
    from gst.placement.measured_plans import MeasuredPlans
    from gst.placement.objectives import Budgeted, MeasuredObjective, Measurer, Objective, Planned, SimulatedObjective
    from gst.placement.planning import PlacementResult, Settings, place_simulated, plan_all
    from gst.placement.task import Task, load_plan, save_plan

__all__ = [
    "Budgeted",
    "Loop",
    "MeasuredObjective",
    "MeasuredPlans",
    "Measurer",
    "Objective",
    "Placed",
    "PlacedFunction",
    "PlacementResult",
    "Plan",
    "Planned",
    "Settings",
    "SimulatedObjective",
    "Task",
    "load",
    "load_plan",
    "machine",
    "place",
    "place_measured",
    "place_simulated",
    "plan_all",
    "save_plan",
]  # fmt: skip

_MODULES = {
    "gst.lowering.plan": ("Plan",),
    "gst.placement.api.place": ("PlacedFunction", "place"),
    "gst.placement.machines": ("machine",),
    "gst.placement.objectives": (
        "Budgeted", "MeasuredObjective", "Measurer", "Objective", "Planned", "SimulatedObjective",
    ),
    "gst.placement.measured": ("place_measured",),
    "gst.placement.measured_plans": ("MeasuredPlans",),
    "gst.placement.api.placed": ("Placed",),
    "gst.placement.planning": ("PlacementResult", "Settings", "place_simulated", "plan_all"),
    "gst.placement.api.saving": ("load",),
    "gst.placement.loop": ("Loop",),
    "gst.placement.task": ("Task", "load_plan", "save_plan"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Return a public name, and import its module."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
