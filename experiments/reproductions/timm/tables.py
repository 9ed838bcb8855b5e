"""Tables of timm benchmarks: measured step times of image models, with the setting that the file's name states."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from experiments.reproductions.dataset_files import dataset_files
from experiments.reproductions.timm.step_time.rows import Setting
from gst.util.untrusted import plain, shown

WANTED = re.compile(r"(?:.*/)?(benchmark-[^/]+\.csv)")
NAMES = re.compile(
    r"benchmark-(infer|train)-(amp_bf16|amp|bf16|fp16|fp32|float16|bfloat16|float32)-(nchw|nhwc)-pt(\d+)-"
    r"(?:cu\d+-|rocm\d+-)?(.+?)(-dynamo)?\.csv"
)
PRECISIONS = {"amp": "amp", "amp_bf16": "amp", "bf16": "half", "fp16": "half", "float16": "half", "bfloat16": "half"}
PREFIXES = re.compile(r"^(tf|test|ese|legacy|gluon|ssl|swsl|ig)_")


class Measurement(NamedTuple):
    """A row of a table.

    Args:
        table: the file's name without `benchmark-` and `.csv`.
        setting: of the table.
        model: architecture, without the tag of its weights.
        image_size, batch: of the input.
        step: milliseconds.
        parameters: millions; 0 where the table has none.
    """

    table: str
    setting: Setting
    model: str
    image_size: int
    batch: int
    step: float
    parameters: float

    @property
    def family(self) -> str:
        """Architectures that share a name before its first digit or underscore, such as `convnext`."""
        return family(self.model)


def family(model: str) -> str:
    """Family of an architecture.

    Examples:
        >>> family("tf_efficientnet_b0"), family("vit_base_patch16_224"), family("resnet50")
        ('efficientnet', 'vit', 'resnet')
    """
    match = re.match(r"[a-z]+", PREFIXES.sub("", model.lower()))
    return match.group() if match else model


def setting_of(name: str) -> Setting:
    """The setting in a table's file name.

    Raises:
        ValueError: the name has another form.
    """
    match = NAMES.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: want benchmark-MODE-PRECISION-LAYOUT-ptVERSION[-cuVERSION]-MACHINE[-dynamo].csv")
    mode, precision, layout, version, machine, dynamo = match.groups()
    machine = re.sub(r"^(?=\d)", "rtx", machine)  # the newer tables write 4090 where the older write rtx4090
    is_channels_last = layout == "nhwc"
    return Setting(machine, mode, PRECISIONS.get(precision, "fp32"), is_channels_last, int(version), dynamo is not None)


def read_tables(path: Path | str, must_hold: bool = True) -> list[Measurement]:
    """The rows of all tables of an archive (`timm.tar.xz`), or of a folder at any depth.

    Rows without a step time (the model did not fit) are left out.

    Args:
        must_hold: refuse a place without tables.

    Raises:
        ValueError: there is no table, or a row does not parse; the message names file and line.
    """
    path = Path(path)
    rows = []
    for name, content in sorted(dataset_files(path, WANTED, "timm")):
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {name} is not UTF-8 text: {error.reason}") from error
        setting, table = setting_of(name), name.removeprefix("benchmark-").removesuffix(".csv")
        mode = setting.mode
        for row in (reader := csv.DictReader(io.StringIO(text, newline=""))):
            where = f"{name}, line {reader.line_num}"
            try:
                if not row[f"{mode}_step_time"]:
                    continue
                numbers = [float(row[f"{mode}_{each}"]) for each in ("img_size", "batch_size", "step_time")]
                parameters = float(row.get("param_count") or 0)
                model = row["model"].split(".")[0]
            except KeyError as error:
                raise ValueError(f"{where}: there is no column {error}") from error
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{where}: {plain(error)}") from error
            size, batch, step = numbers
            if not (1 <= size < 2**20 and 1 <= batch < 2**30 and 0 < step < 1e9 and 0 <= parameters < 1e9):
                raise ValueError(
                    f"{where}: image size, batch, step time, parameters are {shown([*numbers, parameters])}; want "
                    "positive numbers"
                )
            rows.append(Measurement(table, setting, model, int(size), int(batch), step, parameters))
    if not rows and must_hold:
        raise ValueError(f"{path}: it holds no table benchmark-*.csv; give timm.tar.xz or a folder of tables")
    return rows
