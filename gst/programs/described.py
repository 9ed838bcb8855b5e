"""A process that captures steps for a CUDA device on a machine that has none.

Without a GPU PyTorch refuses gradients of tensors on `cuda:0`, even of fake ones. A small library
(`described_cuda.cpp`) describes such a device to it, in a fork, so that nothing of it stays.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.fx.experimental import proxy_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gst.programs.operation import ACCELERATOR
from gst.util.compiled import cpp_library

DEVICE = torch.device(ACCELERATOR, 0)
CAPABILITY = (7, 0)
"""Compute capability of the captured programs: the oldest that PyTorch runs on, so that devices of every generation run
their operators."""

SOURCE = Path(__file__).with_name("described_cuda.cpp")
FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC")
FOREIGN = ("_for_cpu", "mkldnn", "mkl::", "onednn", "fbgemm")
"""Parts of the names of operators that only CPUs run."""

THREADS_OF_AUTOGRAD = "Unable to handle autograd's threading in combination with fork"


def run_described(function: Callable[[], None]) -> None:
    """Call a function that traces with fake tensors, in a fork of this process in which new tensors lie on `cuda:0`.

    Its results are files. With a GPU it is called in this process.

    Raises:
        ValueError: it raised, with the same message; or there is no fork or no C++ compiler here; or gradients of this
            process have threads, which a fork loses.

    Examples:
        >>> run_described(lambda: print(end=""))
    """
    if torch.cuda.is_available():
        with _tracing_for_cuda():
            function()
        return
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ValueError("capture for a device that is not here needs an operating system with fork, such as Linux")
    libraries = ("torch_cpu", "c10")
    library = cpp_library(SOURCE, "described-cuda", FLAGS, libraries, "capture for a device that is not here needs")
    context = multiprocessing.get_context("fork")
    answers, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(function, str(library), sender))
    with warnings.catch_warnings():  # of threads of others, which a fork that only traces never meets
        warnings.filterwarnings("ignore", r".*fork\(\)")
        child.start()
    sender.close()
    try:
        failure = answers.recv()
    except EOFError:
        failure = "the process that captures for CUDA ended without an answer; capture with kind='cpu' shows more"
    child.join()
    if failure is not None and THREADS_OF_AUTOGRAD in failure:
        failure = (
            "this process has threads for gradients, which capture for a CUDA device that is not here cannot fork; "
            "capture with kind='cuda' first, or in a process of its own (gst trace PROGRAM --for cuda)"
        )
    if failure is not None:
        raise ValueError(failure)


def is_foreign(operator: str) -> bool:
    """True if only a CPU runs this operator."""
    return any(part in operator for part in FOREIGN)


@contextmanager
def _tracing_for_cuda() -> Iterator[None]:
    """Put new tensors on `DEVICE`, use attention that devices of all kinds run, and compute gradients in one thread."""
    limit, capability = proxy_tensor.CONSTANT_NUMEL_LIMIT, torch.cuda.get_device_capability
    cudnn, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False  # else operators that it alone has
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    proxy_tensor.CONSTANT_NUMEL_LIMIT = -1  # else tracing computes with constants of one element, on the device
    try:
        with torch.autograd.set_multithreading_enabled(False), sdpa_kernel(SDPBackend.MATH), DEVICE:
            yield
    finally:
        proxy_tensor.CONSTANT_NUMEL_LIMIT, torch.cuda.get_device_capability = limit, capability
        torch.backends.cudnn.enabled = cudnn


def _child(function: Callable[[], None], library: str, sender: Connection) -> None:
    torch.set_num_threads(1)  # threads of OpenMP do not live on in a fork
    ctypes.CDLL(library).gst_describe_cuda()
    try:
        with _tracing_for_cuda():
            function()
    except Exception as error:  # whatever the user's code or the tracer raises
        sender.send(str(error))
    else:
        sender.send(None)
