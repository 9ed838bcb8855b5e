"""What is here and how fast it is: devices, plans, and plans run for real."""

from gst.devices.calls import ExecutionError
from gst.devices.discover import Device, discover, overlap, select
from gst.devices.execution import AnyExecutor, executor
from gst.devices.executor import Executor, Transfers, eager, pytorch
from gst.devices.load import LoadGate, LoadMeter
from gst.devices.log import Log
from gst.devices.measure import Measurement, machine_record, measure
from gst.devices.native import NativeExecutor, Timeline
from gst.devices.plain import PlainPyTorch
from gst.devices.plan import Plan
from gst.devices.profile import profile

__all__ = [
    "AnyExecutor", "Device", "ExecutionError", "Executor", "LoadGate", "LoadMeter", "Log", "Measurement",
    "NativeExecutor", "PlainPyTorch", "Plan", "Timeline", "Transfers", "discover", "eager", "executor",
    "machine_record", "measure", "overlap", "profile", "pytorch", "select",
]  # fmt: skip
