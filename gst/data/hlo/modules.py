"""Files of XLA programs as HLO modules: protobuf, and text of HLO or StableHLO through jaxlib. No program is run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gst.data.hlo.messages import HloModule, ModuleTuningData
from gst.util.untrusted import plain

WAY_OUT = "give HLO as jax.jit(f).lower(x).compile().as_text(), an XLA dump or a TpuGraphs .pb file has it"
PARSER = Path(__file__).with_name("text_to_protobuf.py")
MOST_SECONDS = 300
MOST_BYTES = 1 << 30
TEXT = re.compile(rb"\s*(?:HloModule|(?:(?://|#)[^\n]*\n\s*)*(?:module\b|func\.func\b|\"builtin\.module\"))")


def read_tuning(path: Path | str) -> tuple[Any, Any]:
    """Read an XLA program: an `HloModule` of `gst.data.hlo.messages`, and `ModuleTuningData`, empty if it has none.

    Args:
        path: the protobuf of an `HloModuleProto`, an `HloProto` or a TpuGraphs `ModuleTuningData`; or text, which
            jaxlib parses: HLO, or StableHLO (what `jax.jit(f).lower(x).as_text()` prints).

    Raises:
        ValueError: there is no such file, it is no XLA program, it is damaged, or it is text and jaxlib is not
            installed; the message names the remedy.

    Examples:
        >>> _ = Path("step.txt").write_text("HloModule m\\nENTRY e {\\nROOT x = f32[3] parameter(0)\\n}")
        >>> read_tuning("step.txt")[0].computations[0].name
        'e'
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes; no XLA program is so large")
    try:
        return _decoded(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _decoded(content: bytes) -> tuple[Any, Any]:
    if TEXT.match(content[:4096]):
        return _parsed(content), ModuleTuningData()
    if content and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in content[:256]):
        raise ValueError(f"text that begins neither with HloModule nor with module is not read; {WAY_OUT}")
    with suppress(DecodeError):
        tuning = ModuleTuningData.FromString(content)
        if _has_instructions(tuning.module):
            return tuning.module, tuning
    with suppress(DecodeError):
        module = HloModule.FromString(content)
        if _has_instructions(module):
            return module, ModuleTuningData()
    raise ValueError(f"it holds no XLA program, or a damaged one; {WAY_OUT}")


def _has_instructions(module: Any) -> bool:
    return any(computation.instructions for computation in module.computations)


def _parsed(content: bytes) -> Any:
    """Parse text of HLO or StableHLO by jaxlib, in a process of its own."""
    if importlib.util.find_spec("jaxlib") is None:
        raise ValueError(
            "text is parsed by jaxlib, which is not installed here (pip install 'graph-segment-training[xla]'); or "
            "give protobuf, as XLA_FLAGS=--xla_dump_hlo_as_proto or as_serialized_hlo_module_proto() has it"
        )
    try:
        child = subprocess.run([sys.executable, "-P", PARSER], input=content, capture_output=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"text that jaxlib did not parse in {MOST_SECONDS} s") from error
    if child.returncode:
        lines = child.stderr.decode(errors="replace").splitlines()
        line = next((each for each in lines if "error:" in each), f"it ended with {child.returncode}")
        raise ValueError(f"text that jaxlib does not take: {plain(line)}")
    return HloModule.FromString(child.stdout)
