"""Placement of a program on devices: baselines, searches, learned policies, real measurements, and `gst.place`.

A `Task` (operations, costs, devices) goes in; a `Plan` with its measurements comes out. Read `task.py` first, then
`loop.py`.
"""

from typing import TYPE_CHECKING

from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from gst.lowering.plan import Plan
    from gst.placement.api.place import PlacedFunction, place
    from gst.placement.api.placed import Placed, load
    from gst.placement.loop import Loop
    from gst.placement.machines import machine
    from gst.placement.measured import place_measured
    from gst.placement.measured_plans import MeasuredPlans
    from gst.placement.objectives import Budgeted, MeasuredObjective, Measurer, Objective, Planned, SimulatedObjective
    from gst.placement.planning import PlacementResult, Settings, place_simulated, plan_all
    from gst.placement.task import Task, load_plan, save_plan

__all__ = [
    "Budgeted", "Loop", "MeasuredObjective", "MeasuredPlans", "Measurer", "Objective", "Placed", "PlacedFunction",
    "PlacementResult", "Plan", "Planned", "Settings", "SimulatedObjective", "Task", "load", "load_plan", "machine",
    "place", "place_measured", "place_simulated", "plan_all", "save_plan",
]  # fmt: skip

__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    return __all__
