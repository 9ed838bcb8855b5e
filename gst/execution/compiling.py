"""How TorchInductor compiles the C++ of kernels in this process: several files at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

from gst.machine.devices import usable_cores


@contextmanager
def compiled_by_threads() -> Iterator[None]:
    """Within it Inductor runs as many C++ compilers at a time as this process has cores, and starts no pool of
    processes, which Triton alone needs. What still waits when it ends, as after Ctrl-C, is not compiled."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    count = len(usable_cores())
    threads = ThreadPoolExecutor(count)
    pool = patch.object(AsyncCompile, "pool", staticmethod(lambda: threads))
    no_processes = patch.object(AsyncCompile, "use_process_pool", classmethod(lambda cls: False))
    try:
        with config.patch(compile_threads=count), pool, no_processes:
            yield
    finally:
        threads.shutdown(cancel_futures=True)
