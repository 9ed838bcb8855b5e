"""Compiled code: the numba decorator of all of gst, and libraries of C++ that are compiled once on this machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gst.util.imports import lazy_names
from gst.util.progress import notice
from gst.util.writing import cache_directory

if TYPE_CHECKING:
    from partitioners.compiled import compiled as compiled

__getattr__ = lazy_names(__name__)  # numba is loaded where it is used


def compiler() -> str | None:
    """Return the path of the C++ compiler: `$CXX`, or the first of c++, g++ and clang++; None without one."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def cpp_library(source: Path, name: str, flags: Sequence[str], libraries: Sequence[str], reason: str) -> Path:
    """Compile C++ that uses PyTorch's libraries into `cache_directory()`, unless it was compiled there before.

    Args:
        source: the file. The library is named by its content and the versions that it is compiled for.
        libraries: of PyTorch, such as `torch_cpu`.
        reason: the purpose of a compiler, for messages.

    Raises:
        ValueError: there is no C++ compiler, or it fails; the message holds its first complaint.
    """
    content = [source.read_bytes(), torch.__version__.encode(), platform.machine().encode(), *map(str.encode, flags)]
    library = cache_directory() / f"{name}-{hashlib.sha256(bytes(1).join(content)).hexdigest()[:16]}.so"
    if library.exists():
        return library
    program, asked = compiler(), os.environ.get("CXX")
    if program is None:
        raise ValueError(f"{reason} a C++ compiler, and there is none; install g++ or set CXX")
    instead = "" if not asked or shutil.which(asked) else f" with {program}, as CXX={asked} is no program here"
    notice(f"compiling {source.name}{instead} (once, about 20 s)")
    home, partial = Path(torch.__file__).parent, library.with_suffix(f".{os.getpid()}.partial")
    library.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    linked = [f"-L{home / 'lib'}", *(f"-l{each}" for each in libraries), f"-Wl,-rpath,{home / 'lib'}"]
    ran = subprocess.run(
        [program, *flags, abi, *includes, str(source), "-o", str(partial), *linked], capture_output=True, text=True
    )
    if ran.returncode:
        complaint = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr.strip()[:200])
        raise ValueError(f"{program} could not compile {source.name}: {complaint}")
    partial.replace(library)
    return library
