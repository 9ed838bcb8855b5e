"""The interpreter, compiled once on each machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

from gst.process.progress import notice

SOURCE = Path(__file__).with_name("interpreter.cpp")
FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first there is of c++, g++ and clang++."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def cache_directory() -> Path:
    """What is compiled for this machine lies here: `$XDG_CACHE_HOME/gst`, or `~/.cache/gst`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gst"


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
    notice("compiling the interpreter of plans (once, about 20 s)")
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
