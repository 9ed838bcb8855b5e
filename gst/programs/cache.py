"""Traces kept on disk: a program whose sources did not change is loaded, not traced."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import torch

from gst.programs.capture import capture
from gst.programs.naming import resolve
from gst.programs.program import Program
from gst.programs.sources import digests, own_sources, source_of
from gst.programs.workloads import WORKLOADS
from gst.programs.workloads.hugging_face import PREFIX

TRACES = Path("runs/traces")
SOURCES = "sources.json"
LEFT_S = 3600.0  # nobody writes that long
STARTED = time.time()  # of this process, nearly


def traced(name: str, cache: Path = TRACES) -> Program:
    """The program of a step by its name (see `resolve`), from `cache` if it was traced before.

    It is traced again once a source file changed that the step is made of (found by import statements, outside of
    installed packages), and by another version of torch, of this package or of transformers. Files that a step reads
    by itself are not watched.

    Raises:
        ValueError: as `resolve` and `capture`; a damaged trace is made again instead.
    """
    directory = trace_path(name, cache)
    with suppress(ValueError, OSError):
        if _is_current(directory):
            return Program.load(directory / "program")
    before = set(sys.modules)
    program = capture(resolve(name))
    imported_now = set(sys.modules) - before
    sources = own_sources({_module(name), "gst.programs.capture", *imported_now})
    if not _changed_since_import(set(sources) - set(filter(None, map(source_of, imported_now)))):
        _keep(program, directory, sources)
    return program


def trace_path(name: str, cache: Path = TRACES) -> Path:
    """Where `traced` keeps the program of that name, as made by these versions and by the module of that name here."""
    head = name.partition(":")[0]
    versions = [_version("graph-segment-training"), torch.__version__, *sys.version_info[:2]]
    if head == PREFIX:
        versions.append(_version(PREFIX))
    elif head not in WORKLOADS:
        with suppress(ImportError, ValueError, AttributeError):
            spec = find_spec(head)
            versions.append(spec and spec.origin)
    digest = hashlib.sha256(json.dumps([name, versions]).encode()).hexdigest()[:16]
    return cache / f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:60]}-{digest}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _module(name: str) -> str:
    head = name.partition(":")[0]
    if head in WORKLOADS:
        return WORKLOADS[head].__module__
    return "gst.programs.workloads.hugging_face" if head == PREFIX else head


def _is_current(directory: Path) -> bool:
    recorded = json.loads((directory / SOURCES).read_text())
    return bool(recorded == digests(map(Path, recorded)))


def _changed_since_import(files: Iterable[Path]) -> bool:
    """May this process run older code than these files hold?"""
    return any(path.stat().st_mtime > STARTED for path in files)


def _keep(program: Program, directory: Path, sources: Iterable[Path]) -> None:
    """Put the trace in place of what is there, at once, and remove what a kill left of earlier ones."""
    for left in directory.parent.glob(f".partial-{directory.name}-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                shutil.rmtree(left, ignore_errors=True)
    partial = directory.with_name(f".partial-{directory.name}-{uuid4().hex}")
    try:
        program.save(partial / "program")
        (partial / SOURCES).write_text(json.dumps(digests(sources)))
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):  # another process traced the same, and was quicker
            partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
