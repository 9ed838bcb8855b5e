"""Files of XLA programs as HLO modules: HLO text, protobuf, and StableHLO through jaxlib. No program is run."""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gst.data.hlo.messages import HloModule, ModuleTuningData
from gst.data.hlo.text import parse_module
from gst.util.untrusted import plain

WAY_OUT = "give HLO as jax.jit(f).lower(x).compile().as_text(), an XLA dump or a TpuGraphs .pb file has it"
MOST_BYTES = 1 << 30
STABLEHLO = re.compile(rb"\s*(?:(?://|#)[^\n]*\n\s*)*(?:module\b|func\.func\b|\"builtin\.module\")")


def read_tuning(path: Path | str) -> tuple[Any, Any]:
    """Read an XLA program: an `HloModule` of `gst.data.hlo.messages`, and `ModuleTuningData`, empty if it has none.

    Args:
        path: HLO text, StableHLO text (what `jax.jit(f).lower(x).as_text()` prints), or the protobuf of an
            `HloModuleProto`, an `HloProto` or a TpuGraphs `ModuleTuningData`.

    Raises:
        ValueError: there is no such file, it is no XLA program, it is damaged, or it is StableHLO and jaxlib is not
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
    if content[:4096].lstrip().startswith(b"HloModule"):
        return parse_module(content.decode(errors="replace")), ModuleTuningData()
    if STABLEHLO.match(content[:4096]):
        return _converted(content.decode(errors="replace")), ModuleTuningData()
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


def _converted(text: str) -> Any:
    """Convert StableHLO text by the converter of XLA."""
    try:
        convert = importlib.import_module("jaxlib.xla_client")._xla.mlir.mlir_module_to_xla_computation
    except (ImportError, AttributeError) as error:
        raise ValueError(
            "StableHLO is read by jaxlib, which is not installed here (pip install 'graph-segment-training[xla]'), "
            'or give HLO: jax.jit(f).lower(x).as_text(dialect="hlo")'
        ) from error
    try:
        content = convert(text, use_tuple_args=False, return_tuple=False).as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError, TypeError) as error:
        line = next((each for each in str(error).splitlines() if "error:" in each), str(error))
        raise ValueError(f"StableHLO that jaxlib does not take: {plain(line)}") from error
    return HloModule.FromString(content)
