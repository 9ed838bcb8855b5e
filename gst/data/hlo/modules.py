"""Files of XLA programs as HLO modules: protobuf, and text of HLO or StableHLO through jaxlib. No program is run.

Fields are named and numbered as in `xla/service/hlo.proto` and `xla/xla_data.proto` of openxla/xla and in
`tpu_graphs/proto/tuning.proto` of google-research-datasets/tpu_graphs. Protobuf skips fields that are not declared, so
files of older and newer versions of XLA are read alike.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from gst.util.untrusted import plain

WAY_OUT = "give HLO as jax.jit(f).lower(x).compile().as_text(), an XLA dump or a TpuGraphs .pb file has it"
PARSER = Path(__file__).with_name("text_to_protobuf.py")
MOST_SECONDS = 300
MOST_BYTES = 1 << 30
TEXT = re.compile(rb"\s*(?:HloModule|(?:(?://|#)[^\n]*\n\s*)*(?:module\b|func\.func\b|\"builtin\.module\"))")

_SCHEMA = """
message Layout
    repeated int64 minor_to_major = 1
message Shape
    int32 element_type = 2
    repeated int64 dimensions = 3
    repeated Shape tuple_shapes = 4
    Layout layout = 5
message WindowDimension
    int64 size = 1
    int64 stride = 2
    int64 padding_low = 3
    int64 padding_high = 4
    int64 window_dilation = 5
    int64 base_dilation = 6
    bool window_reversal = 7
message Window
    repeated WindowDimension dimensions = 1
message ConvolutionDimensionNumbers
    int64 kernel_input_feature_dimension = 3
    int64 kernel_output_feature_dimension = 4
    repeated int64 kernel_spatial_dimensions = 6
    int64 input_batch_dimension = 7
    int64 input_feature_dimension = 8
    int64 output_batch_dimension = 9
    int64 output_feature_dimension = 10
    repeated int64 input_spatial_dimensions = 11
message SliceDimensions
    int64 start = 1
    int64 limit = 2
    int64 stride = 3
message PaddingConfigDimension
    int64 edge_padding_low = 1
    int64 edge_padding_high = 2
message PaddingConfig
    repeated PaddingConfigDimension dimensions = 1
message HloInstruction
    string name = 1
    string opcode = 2
    Shape shape = 3
    int64 parameter_number = 9
    repeated int64 dimensions = 14
    Window window = 15
    ConvolutionDimensionNumbers convolution_dimension_numbers = 16
    repeated SliceDimensions slice_dimensions = 17
    repeated int64 dynamic_slice_sizes = 20
    PaddingConfig padding_config = 21
    int64 id = 35
    repeated int64 operand_ids = 36
    repeated int64 called_computation_ids = 38
    int64 feature_group_count = 50
    int64 batch_group_count = 58
    bool is_stable = 60
message HloComputation
    string name = 1
    repeated HloInstruction instructions = 2
    int64 id = 5
    int64 root_id = 6
message HloModule
    string name = 1
    repeated HloComputation computations = 3
message ExecutionProfile
    int64 compute_time_ns = 4
message TensorLayout
    repeated int32 dims = 1
message NodeLayout
    repeated TensorLayout tensors = 1
message LayoutConfig
    repeated NodeLayout nodes = 1
message HloModuleConfig
    LayoutConfig layout_config = 1
message ConfigProfile
    HloModuleConfig module_config = 2
    bool error = 3
    ExecutionProfile profile = 4
message ModuleTuningData
    HloModule module = 1
    repeated ConfigProfile runs = 3
    repeated uint64 config_index_to_node = 4
"""


def _message_classes() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="gst_hlo.proto", package="gst_hlo", syntax="proto3")
    messages = [each.strip().splitlines() for each in _SCHEMA.split("message ")[1:]]
    names = [message for message, *_ in messages]
    for message, *lines in messages:
        declared = file.message_type.add(name=message)
        for line in lines:
            *repeated, kind, name, _, number = line.split()
            field = declared.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in names:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".gst_hlo.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"gst_hlo.{name}")) for name in names}


_CLASSES = _message_classes()
HloModule = _CLASSES["HloModule"]
ModuleTuningData = _CLASSES["ModuleTuningData"]
"""An `HloModule` with measured configurations. The `HloProto` of an XLA dump has its module in the same field and reads
as tuning data without configurations."""


def read_tuning(path: Path | str) -> tuple[Any, Any]:
    """Read an XLA program: an `HloModule`, and `ModuleTuningData`, empty if it has none.

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
