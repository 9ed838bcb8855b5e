"""The compiled interpreter of plans, for CPU core sets."""

from gst.devices.native.executor import NativeExecutor, Timeline, supports

__all__ = ["NativeExecutor", "Timeline", "supports"]
