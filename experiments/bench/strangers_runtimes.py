"""Runtimes beside PyTorch, for inference on the CPU: ONNX Runtime and OpenVINO, each if it is installed.

pip install onnx onnxscript onnxruntime openvino    # or the extra `dev`
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[], Any]


def onnx_runtime(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    """A module exported to ONNX and run by ONNX Runtime, which optimises the graph, with numpy inputs bound once.

    Raises:
        ValueError: a package is not installed.
    """
    _want("onnx", "onnxscript", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "model.onnx")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, tuple(inputs), path, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return lambda: [torch.from_numpy(each) for each in session.run(None, feeds)]


def openvino(module: nn.Module, inputs: Sequence[Tensor], threads: int) -> Run:
    """A module converted and compiled by OpenVINO for latency, in single precision.

    Raises:
        ValueError: the package is not installed.
    """
    _want("openvino")
    import openvino

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = openvino.convert_model(module, example_input=tuple(inputs))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    arrays = [each.numpy() for each in inputs]

    def run() -> list[Tensor]:
        results = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(results[number]) for number in range(len(results))]

    return run


def _want(*packages: str) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(f"{missing[0]} is not installed; pip install {' '.join(packages)}")


RUNTIMES: dict[str, Callable[..., Run]] = {"onnxruntime": onnx_runtime, "openvino": openvino}
