"""PyTorch programs as graphs: capture of training and inference steps, features of their operations, bundled workloads.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gst.programs.features import FEATURE_NAMES, NUM_OPCODES
    from gst.programs.kinds import kind_for
    from gst.programs.operation import Operation, Reference
    from gst.programs.program import Program, as_module, differ_beyond_rounding, outputs_differ
    from gst.programs.seeded import drawn_from
    from gst.programs.step import Step, TrainingStep, inference_step, training_step
    from gst.programs.traces import resolve, trace_path, traced
    from gst.programs.tracing import capture, capture_module
    from gst.programs.workloads import WORKLOADS

_HOMES = {
    "features": ("FEATURE_NAMES", "NUM_OPCODES"),
    "kinds": ("kind_for",),
    "operation": ("Operation", "Reference"),
    "program": ("Program", "as_module", "differ_beyond_rounding", "outputs_differ"),
    "seeded": ("drawn_from",),
    "step": ("Step", "TrainingStep", "inference_step", "training_step"),
    "traces": ("resolve", "trace_path", "traced"),
    "tracing": ("capture", "capture_module"),
    "workloads": ("WORKLOADS",),
}

__all__ = [
    "FEATURE_NAMES", "NUM_OPCODES", "WORKLOADS", "Operation", "Program", "Reference", "Step", "TrainingStep",
    "as_module", "capture", "capture_module", "differ_beyond_rounding", "drawn_from", "inference_step", "kind_for",
    "outputs_differ", "resolve", "trace_path", "traced", "training_step",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'gst.programs' has no attribute {name!r}")
    return getattr(import_module(f"gst.programs.{home}"), name)
