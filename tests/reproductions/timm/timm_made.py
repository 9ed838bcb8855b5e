"""A folder with tables of timm and samples of GraphNet: one small network under several names."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.files import FIXTURES

MODELS = ("alpha_net", "beta_net", "gamma_net", "delta_net")
TABLES = {
    "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv": ("infer", 1.0),
    "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090-dynamo.csv": ("infer", 0.8),
    "benchmark-infer-fp32-nchw-pt221-cpu-i9_10940x-dynamo.csv": ("infer", 90.0),
    "benchmark-train-amp-nhwc-pt240-cu124-rtx4090.csv": ("train", 3.0),
}


def write(folder: Path, models: tuple[str, ...] = MODELS) -> Path:
    """Write it and return `folder`; the step of a model takes longer with its place and the batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (mode, scale) in TABLES.items():
        lines = [f"model,{mode}_img_size,{mode}_batch_size,{mode}_step_time,param_count"]
        lines += [
            f"{model},{size},{batch},{scale * (place + 2) * batch / 64},"
            for place, model in enumerate(models) for size, batch in ((32, 64), (64, 128))
        ]  # fmt: skip
        (folder / name).write_text("\n".join([*lines, "without_source,32,64,1.0,"]) + "\n")
    for model in models:
        shutil.copytree(FIXTURES / "graphnet" / "small_net.tiny", folder / "timm" / f"{model}.tiny", dirs_exist_ok=True)
    return folder
