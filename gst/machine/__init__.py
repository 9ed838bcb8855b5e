"""The devices of this machine and their speed: CPU core sets, accelerators, links, load and clocks.

Operating system files and drivers go in; `Device` objects and measured rates come out. Read `devices.py` first.
"""
