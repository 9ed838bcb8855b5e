"""What is here and how fast it is: devices, plans, and plans run for real."""

from gst.devices.calls import ExecutionError
from gst.devices.discover import Device, discover, overlap, select
from gst.devices.execution import AnyExecutor, executor
from gst.devices.executor import Executor, Transfers, eager, pytorch
from gst.devices.fusion import fused, fusion_groups, legalise, pointwise_chains
from gst.devices.isolated import IsolatedExecutor, measure_plans
from gst.devices.load import LoadGate, LoadMeter
from gst.devices.log import Log
from gst.devices.measure import Failure, Measurement, machine_record, measure
from gst.devices.native import NativeExecutor, Timeline
from gst.devices.orders import critical_path_priority, memory_aware_priority
from gst.devices.plain import PlainPyTorch
from gst.devices.plan import Plan
from gst.devices.profile import profile

__all__ = [
    "AnyExecutor", "Device", "ExecutionError", "Executor", "Failure", "IsolatedExecutor", "LoadGate", "LoadMeter",
    "Log", "Measurement", "NativeExecutor", "PlainPyTorch", "Plan", "Timeline", "Transfers", "critical_path_priority",
    "discover", "eager", "executor", "fused", "fusion_groups", "legalise", "machine_record", "measure", "measure_plans",
    "memory_aware_priority", "overlap", "pointwise_chains", "profile", "pytorch", "select",
]  # fmt: skip
