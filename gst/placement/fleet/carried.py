"""A saved program as bytes that travel to other hosts, where it is kept by its content."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from gst.devices.describe.machine import cache_directory
from gst.programs import Program
from gst.programs.program import FILES

CARRIED = (*FILES, "checksums.json")


def pack(program: Program) -> dict[str, bytes]:
    """The files of `Program.save` by name.

    Raises:
        ValueError: an operation or argument has no form in a file.
    """
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "program"
        program.save(directory)
        return {name: (directory / name).read_bytes() for name in CARRIED}


def digest_of(files: Mapping[str, bytes]) -> str:
    """64 hexadecimal digits (SHA-256) of names and content; inputs count too, unlike in `Program.key`."""
    lines = [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def kept(digest: str) -> Path | None:
    """Where this host keeps the program of that content; None if it has none, or a damaged one."""
    directory = _home(digest)
    try:
        files = {name: (directory / name).read_bytes() for name in CARRIED}
    except OSError:
        return None
    return directory if digest_of(files) == digest else None


def keep(files: Mapping[str, bytes], digest: str) -> Path:
    """Write a program that came from elsewhere below `cache_directory()`, at once or not at all; nothing is unpickled.

    Raises:
        ValueError: the files are not those of a saved program, or not of that content.
    """
    if set(files) != set(CARRIED) or digest_of(files) != digest:
        raise ValueError(f"what came is not the saved program {digest[:16]}; measure again")
    directory = _home(digest)
    partial = directory.with_name(f".partial-{digest}-{uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        for name, content in files.items():
            (partial / name).write_bytes(content)
        shutil.rmtree(directory, ignore_errors=True)  # a damaged one
        try:
            partial.rename(directory)
        except OSError:  # another worker of this host was quicker
            if kept(digest) is None:
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory


def _home(digest: str) -> Path:
    return cache_directory() / "programs" / digest
