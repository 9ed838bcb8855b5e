"""Execution of plans on real devices: a program and a plan go in; outputs, timelines and runtimes come out.

Holds the native interpreter for CPU cores, streams and recorded graphs of accelerators, isolated child processes, and
timing. Read `executor.py`, then `measure.py`.
"""
