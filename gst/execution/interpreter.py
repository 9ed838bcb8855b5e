"""The compiled interpreter of plans: built once on a machine, programs in its form, and its threads."""

from __future__ import annotations

import hashlib
import operator
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gst.lowering.rewrite import CompiledGroup
from gst.machine.devices import Device, cache_directory, core_numbers
from gst.programs import Operation, Program, Reference
from gst.programs.operation import references
from gst.util.progress import notice

# The interpreter takes these as the numbers that operators know them by.
MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def lower(program: Program, callers: int) -> Any:
    """The program as a `torch.classes.gst.Program`; operators are looked up by name, arguments put in schema order.

    Args:
        program: what is to run.
        callers: how many threads may be in one compiled group at once.

    Raises:
        ValueError: an operation is no registered operator; the message names it.
    """
    lowered = torch.classes.gst.Program(program.num_nodes)
    for node, operation in enumerate(program.operations):
        if operation.kind == "constant":
            lowered.constant(node, operation.constant)
        elif operation.kind == "operation" and operation.target is operator.getitem:
            lowered.item(node, operation.args[0].node, operation.args[1])
        elif isinstance(operation.target, CompiledGroup):
            lowered.compiled(node, str(operation.target.library), callers)
            for argument in operation.args:
                lowered.value(node, argument.node)
        elif operation.kind == "operation":
            _lower(lowered, node, operation)
    lowered.finish(sorted({each.node for each in program.outputs if isinstance(each, Reference)}))
    return lowered


def _lower(lowered: Any, node: int, operation: Operation) -> None:
    schema = getattr(operation.target, "_schema", None)
    if schema is None:
        raise ValueError(f"node {node} calls {operation.target}, which is no operator of PyTorch's dispatcher")
    lowered.call(node, schema.name, schema.overload_name)
    for position, argument in enumerate(schema.arguments):
        if position < len(operation.args):
            value = operation.args[position]
        elif argument.name in operation.kwargs:
            value = operation.kwargs[argument.name]
        else:
            value = argument.default_value
        if isinstance(value, Reference):
            lowered.value(node, value.node)
        elif isinstance(value, list | tuple) and any(True for _ in references(value)):
            lowered.list(node, [-1 if each is None else each.node for each in value])
        else:
            lowered.fixed(node, _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return list(value) or None  # the interpreter makes an empty list of the type that is wanted
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return MEMORY_FORMATS.get(value, value) if isinstance(value, torch.memory_format) else value


SPIN_US = 500


def machine(devices: Sequence[Device]) -> Any:
    """A started `torch.classes.gst.Machine` with a thread for each first core of a device."""
    numbers = core_numbers(devices)
    made = torch.classes.gst.Machine(1 + max(core for mine in numbers for core in mine), SPIN_US)
    leaders: dict[int, list[Device]] = {}
    for device, cores in zip(devices, numbers, strict=True):
        leaders.setdefault(cores[0], []).append(device)
    worker: dict[int, int] = {}
    for leader, led in leaders.items():
        widest = max(led, key=lambda device: device.threads)
        worker[leader] = made.worker(list(widest.cores[:1]), list(widest.cores), widest.threads, leader)
    for device, cores in zip(devices, numbers, strict=True):
        made.device(cores, device.threads, worker[cores[0]])
    made.start()
    return made


SOURCE = Path(__file__).with_name("interpreter.cpp")
FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first there is of c++, g++ and clang++."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


@lru_cache(maxsize=1)
def load() -> None:
    """Make `torch.classes.gst` known, compiling the interpreter (about 15 s) unless this was done before.

    The library lies in `$XDG_CACHE_HOME/gst` (`~/.cache/gst`), named by the content of its source and by what it was
    compiled for.

    Raises:
        ValueError: there is no C++ compiler, or it fails; the message holds its first complaint.
    """
    library = _library()
    if not library.exists():
        _compile(library)
    torch.ops.load_library(str(library))


def _library() -> Path:
    content = [SOURCE.read_bytes(), torch.__version__.encode(), platform.machine().encode(), *map(str.encode, FLAGS)]
    digest = hashlib.sha256(b"\0".join(content)).hexdigest()[:16]
    return cache_directory() / f"interpreter-{digest}.so"


def _compile(library: Path) -> None:
    program = compiler()
    if program is None:
        raise ValueError("plans on core sets need a C++ compiler, and there is none; install g++ or set CXX")
    asked = os.environ.get("CXX")
    instead = "" if not asked or shutil.which(asked) else f" with {program}, as CXX={asked} is no program here"
    notice(f"compiling the interpreter of plans{instead} (once, about 20 s)")
    home = Path(torch.__file__).parent
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(f".{os.getpid()}.partial")
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    command = [program, *FLAGS, abi, *includes, str(SOURCE), "-o", str(partial), *libraries]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        complaint = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr.strip()[:200])
        raise ValueError(f"{program} could not compile the interpreter of plans: {complaint}")
    partial.replace(library)
