"""Program that parses text of HLO, or of StableHLO, from its input by jaxlib and writes the protobuf of the module.

It runs in a process of its own: jaxlib ends its process on some damaged text. No program of XLA is run.
"""

from __future__ import annotations

import importlib
import sys


def protobuf_of(text: str) -> bytes:
    """Return the serialized `HloModuleProto`; RuntimeError if jaxlib does not take the text."""
    if text.lstrip().startswith("HloModule"):
        module = importlib.import_module("jaxlib._hlo").hlo_module_from_text(text)
    else:
        mlir = importlib.import_module("jaxlib.xla_client")._xla.mlir
        module = mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)
    content: bytes = module.as_serialized_hlo_module_proto()
    return content


if __name__ == "__main__":
    sys.stdout.buffer.write(protobuf_of(sys.stdin.buffer.read().decode(errors="replace")))
