"""PyTorch programs as graphs: training and inference steps go in, programs (lists of ATen calls) and features come out.

Holds capture, the random numbers of captured steps, bundled workloads, and traces on disk. Names that capture or build
workloads are loaded when they are first used. Read `program.py`, then `step.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gst.programs.features import FEATURE_NAMES, NUM_OPCODES
from gst.programs.operation import Operation, Reference, kind_for
from gst.programs.program import Program, as_module, differ_beyond_rounding, outputs_differ
from gst.programs.step import Step, TrainingStep, drawn_from, inference_step, training_step
from gst.util.imports import lazy_names

if TYPE_CHECKING:
    from gst.programs.traces import resolve, trace_path, traced
    from gst.programs.tracing import capture, capture_module
    from gst.programs.workloads import WORKLOADS

__all__ = [
    "FEATURE_NAMES", "NUM_OPCODES", "WORKLOADS", "Operation", "Program", "Reference", "Step", "TrainingStep",
    "as_module", "capture", "capture_module", "differ_beyond_rounding", "drawn_from", "inference_step", "kind_for",
    "outputs_differ", "resolve", "trace_path", "traced", "training_step",
]  # fmt: skip

__getattr__ = lazy_names(__name__)
