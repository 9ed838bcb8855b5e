"""Real PyTorch programs as graphs: capture, features, bundled workloads."""

from gst.programs.capture import capture, resolve
from gst.programs.features import FEATURE_NAMES, NUM_OPCODES
from gst.programs.program import Operation, Program, Reference, outputs_differ
from gst.programs.workloads import WORKLOADS, TrainingStep

__all__ = [
    "FEATURE_NAMES", "NUM_OPCODES", "WORKLOADS", "Operation", "Program", "Reference", "TrainingStep",
    "capture", "outputs_differ", "resolve",
]  # fmt: skip
