"""Settings of glibc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from gst.util.process import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(60 << 18)  # 60 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for prepare in (lambda: True, keep_freed_memory):
    assert prepare()
    faults()
    print(min(faults() for _ in range(5)))  # the system takes idle pages back when it likes
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_tensors_are_used_again_without_page_faults() -> None:
    """In a process of its own: tests beside others run in a thread whose part of the heap ends at 64 MiB."""
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True).stdout
    as_usual, with_freed_memory = map(int, printed.split())
    assert as_usual >= 4 * (60 << 8)
    assert with_freed_memory <= 2 * (60 << 8)
