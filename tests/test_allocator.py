from __future__ import annotations

import platform
import resource

import pytest
import torch

from gst.allocator import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_tensors_are_used_again_without_page_faults() -> None:
    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            torch.ones(60 << 18)  # 60 MiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert keep_freed_memory()
    faults()
    assert faults() <= 2 * (60 << 8)  # without it 4 * (60 << 8)
