"""Devices that exist on any machine."""

from gst.machine.devices import Device


def pair(separate_memory: bool) -> list[Device]:
    """Two CPU devices, free to use any core: they exist on a machine with one core too."""
    return [
        Device(f"cpu:{number}", "cpu", (), 1, f"cpu:{number}" if separate_memory else "host", "test")
        for number in range(2)
    ]
