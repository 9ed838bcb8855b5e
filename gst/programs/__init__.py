"""Real PyTorch programs as graphs: capture, features, bundled workloads."""

from gst.programs.cache import trace_path, traced
from gst.programs.capture import capture, capture_module
from gst.programs.features import FEATURE_NAMES, NUM_OPCODES
from gst.programs.modules import as_module
from gst.programs.naming import resolve
from gst.programs.program import Operation, Program, Reference, outputs_differ
from gst.programs.step import Step, TrainingStep, inference_step, training_step
from gst.programs.workloads import WORKLOADS

__all__ = [
    "FEATURE_NAMES", "NUM_OPCODES", "WORKLOADS", "Operation", "Program", "Reference", "Step", "TrainingStep",
    "as_module", "capture", "capture_module", "inference_step", "outputs_differ", "resolve", "trace_path", "traced",
    "training_step",
]  # fmt: skip
