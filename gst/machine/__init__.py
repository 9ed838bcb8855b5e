"""The devices of this machine: CPU core sets, accelerators, caches and load.

Operating system files and drivers go in; `Device` objects and the load come out. Read `devices.py` first.
"""
