"""Reader of NeuSight (Lee et al., ASPLOS 2025): measured operators of transformers, whole-model times, and GPUs."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from experiments.reproductions.dataset_files import dataset_files
from gst.util.untrusted import parse_json, plain, shown

WANTED = re.compile(r"(?:.*/)?(label/[^/]+/[^/]+\.(?:csv|json)|data/device_configs/[^/]+\.json|summary/summary\.csv)")
CASE = re.compile(r"(?P<model>\w+)-(?P<mode>inf|train)-(?P<length>\d+)-(?P<batch>\d+)(?:-(?P<option>\w+))?")
LAYER = re.compile(r"(?:^|\.)(?:h|layers?|block)\.(\d+)\.")
COLUMNS = {"op", "target", "_input_nodes", "meta", "input_shapes", "fw_latency", "bw_latency", "output_shape", "Name"}
Shape = tuple[int, ...]


class Machine(NamedTuple):
    """Peak rates of one GPU, as its data sheet states them.

    Args:
        name: as in the folder of its measurements.
        matrix_flops, vector_flops: float32 operations per second in matrix products and elsewhere.
        bandwidth: bytes per second of its memory.
        cores: streaming multiprocessors or compute units.
        clock: hertz.
        cache, memory: bytes of its last cache and of its memory.
    """

    name: str
    matrix_flops: float
    vector_flops: float
    bandwidth: float
    cores: int
    clock: float
    cache: float
    memory: float


class Operation(NamedTuple):
    """One operation of a traced model and its measured time.

    Args:
        name: of the node in the graph.
        call: `call_module`, `call_function`, `call_method`, `get_attr`, `placeholder` or `output`.
        kind: function, method, or class of the module: `addmm`, `view`, `Linear`.
        target: path of the module or parameter; as written in the file otherwise.
        inputs: positions of the operations whose results it takes.
        input_shapes: shapes of the tensors that it takes; `(1,)` stands for a number.
        output_shape: of its result; empty where there is none.
        dtype: of its result, such as `torch.float32`; empty where it is no tensor.
        forward_ms, backward_ms: measured times; 0 where the operation has none.
    """

    name: str
    call: str
    kind: str
    target: str
    inputs: tuple[int, ...]
    input_shapes: tuple[Shape, ...]
    output_shape: Shape
    dtype: str
    forward_ms: float
    backward_ms: float


class Case(NamedTuple):
    """One model on one machine, with one batch size.

    Args:
        machine: its name.
        model: such as `bert_large`.
        mode: `inf` or `train`.
        length: tokens of a sequence.
        batch: sequences.
        option: `fusion`, or a way to distribute such as `dp4`; empty for one GPU in eager mode.
        layers: how often the traced layer occurs in the model; 0 where the trace holds all of them.
        time_ms, forward_ms: measured times of the whole model; `forward_ms` is NaN where it was not measured.
        operations: in order of execution, with one layer of the model; empty where only whole times were measured.
    """

    machine: str
    model: str
    mode: str
    length: int
    batch: int
    option: str
    layers: int
    time_ms: float
    forward_ms: float
    operations: tuple[Operation, ...]

    def repeats(self) -> list[int]:
        """Count the occurrences of each operation in the whole model.

        Operations from the first to the last of layer 0, and up to the next module behind it, occur `layers` times.

        Examples:
            >>> modules = ("embed", "h.0.fc", "", "head")
            >>> operations = tuple(
            ...     Operation("", "call_module" if each else "call_function", "", each, (), (), (), "", 1.0, 0.0)
            ...     for each in modules
            ... )
            >>> Case("a", "b", "inf", 8, 1, "", 24, 1.0, 1.0, operations).repeats()
            [1, 24, 24, 1]
        """
        inside = [place for place, each in enumerate(self.operations) if LAYER.search(each.target)]
        repeats = [1] * len(self.operations)
        if self.layers == 0 or not inside:
            return repeats
        for place in range(inside[0], len(self.operations)):
            if place > inside[-1] and self.operations[place].call in ("call_module", "output"):
                break
            repeats[place] = self.layers
        return repeats


class Dataset(NamedTuple):
    """NeuSight's measurements and published predictions.

    Args:
        machines: by name.
        cases: by machine, model, mode, length, batch and option.
        published: rows of `summary/summary.csv`: predictions of NeuSight, roofline, Habitat and Li et al.; empty
            where the file is missing.
    """

    machines: dict[str, Machine]
    cases: tuple[Case, ...]
    published: tuple[dict[str, str], ...]


def read_neusight(path: Path | str) -> Dataset:
    """The measurements of an archive (`neusight.tar.xz`) or of a folder unpacked from it. Nothing is unpacked.

    Raises:
        ValueError: the archive is cut off, a file is damaged, or a machine has no rates; the message names the file.
    """
    path = Path(path)
    files = dict(dataset_files(path, WANTED, "NeuSight"))
    machines = {}
    for name in sorted(files):
        if name.startswith("data/"):
            machine = parse_machine(files[name], PurePosixPath(name).stem, f"{path}/{name}")
            machines[machine.name] = machine
    cases = []
    for name in sorted(files):
        if not name.startswith("label/") or not name.endswith(".json"):
            continue
        where = f"{path}/{name}"
        machine_name = PurePosixPath(name).parent.name
        if machine_name not in machines:
            raise ValueError(f"{where}: its machine has no data/device_configs/{machine_name}.json; add its rates")
        match = CASE.fullmatch(PurePosixPath(name).stem)
        if not match:
            raise ValueError(f"{where}: the name is not MODEL-inf-LENGTH-BATCH.json or MODEL-train-LENGTH-BATCH.json")
        record = _object(files[name], where)
        table = files.get(str(PurePosixPath(name).with_suffix(".csv")))
        layers = _number(record.get("num_layer") or 0, f"{where}, num_layer")
        cases.append(
            Case(machine_name, match["model"], match["mode"], int(match["length"]), int(match["batch"]),
                 match["option"] or "", int(layers), _number(record.get("e2e_latency"), f"{where}, e2e_latency"),
                 float("nan") if "fw_latency" not in record else _number(record["fw_latency"], f"{where}, fw_latency"),
                 () if table is None else parse_operations(table, where.removesuffix("json") + "csv"))
        )  # fmt: skip
    if not cases:
        raise ValueError(f"{path} holds no label/MACHINE/*.json; give neusight.tar.xz or the folder unpacked from it")
    published = tuple(_rows(files.get("summary/summary.csv", b""), f"{path}/summary/summary.csv"))
    return Dataset(machines, tuple(cases), published)


def parse_machine(content: bytes, name: str, where: str) -> Machine:
    """A machine from the JSON of its configuration.

    Raises:
        ValueError: a rate is missing or not positive.

    Examples:
        >>> text = b'{"SingleFLOPs": 19492, "Mem_Bw": 1555, "Num_Sm": 108, "Freq": 1410, "L2Cache": 40, "Dev_Mem": 40}'
        >>> parse_machine(text, "a100", "a100.json").bandwidth
        1555000000000.0
    """
    record = _object(content, where)

    def rate(key: str, unit: float) -> float:
        value = _number(record.get(key), f"{where}, {key}") * unit
        if value <= 0:
            raise ValueError(f"{where}, {key}: is {value:g}, want a positive rate")
        return value

    matrix, vector = ("SingleFLOPsMM", "SingleFLOPsVEC") if "SingleFLOPsMM" in record else ("SingleFLOPs",) * 2
    return Machine(
        name, rate(matrix, 1e9), rate(vector, 1e9),
        rate("Mem_Bw", 1e9), int(rate("Num_Sm", 1)), rate("Freq", 1e6), rate("L2Cache", 2**20), rate("Dev_Mem", 2**30),
    )  # fmt: skip


def parse_operations(content: bytes, where: str) -> tuple[Operation, ...]:
    """The operations of one CSV file, in order.

    Raises:
        ValueError: a column is missing, a shape or a time is none, or an input is no earlier operation.
    """
    operations: list[Operation] = []
    places: dict[str, int] = {}
    for number, row in enumerate(_rows(content, where, COLUMNS), start=2):
        at = f"{where}, line {number}"
        names = re.findall(r"[{ ](\w+): None", row["_input_nodes"])
        missing = [each for each in names if each not in places]
        if missing:
            raise ValueError(f"{at}: input {shown(missing[0])} is no earlier operation")
        inputs = tuple(places[each] for each in names)
        if row["Name"] in places:
            raise ValueError(f"{at}: operation {shown(row['Name'])} occurs twice")
        places[row["Name"]] = len(operations)
        operations.append(
            Operation(row["Name"], row["op"], _kind(row), row["target"], inputs,
                      tuple(_shapes(row["input_shapes"], f"{at}, input_shapes")),
                      next(iter(_shapes(f"[{row['output_shape']}]", f"{at}, output_shape")), ()), row.get("dtype", ""),
                      _number(row["fw_latency"], f"{at}, fw_latency"), _number(row["bw_latency"], f"{at}, bw_latency"))
        )  # fmt: skip
    if not operations:
        raise ValueError(f"{where}: holds no operations")
    return tuple(operations)


def _kind(row: dict[str, str]) -> str:
    """`Linear` of a module, `addmm` of `<built-in method addmm of type object at 0x15>`, else the target."""
    if row["op"] == "call_module":
        return (re.findall(r"<class '(?:\w+\.)*(\w+)'>", row["meta"]) or [row["target"].rpartition(".")[2]])[-1]
    match = re.match(r"<(?:built-in )?(?:function|method|class) '?(?:\w+\.)*(\w+)", row["target"])
    return match[1] if match else row["target"]


def _shapes(text: str, where: str) -> list[Shape]:
    try:
        shapes = parse_json(re.sub(r",\s*\]", "]", text.replace("(", "[").replace(")", "]")) or "[]")
        return [tuple(_dimension(size) for size in shape) for shape in shapes]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {shown(text)} is no list of shapes") from error


def _dimension(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise ValueError(f"{shown(value)} is no dimension")
    return value


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{where}: is {shown(value)}, want a number that is finite and not negative")
    return number


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        record = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({plain(error)})") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: holds {shown(record)}, want an object")
    return record


def _rows(content: bytes, where: str, columns: set[str] | frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(content.decode(), newline=""))
        missing = sorted(columns - set(reader.fieldnames or ()))
        if missing:
            raise ValueError(f"column {missing[0]} is missing")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has more or fewer fields than the first")
            yield row
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{where}: not its table ({plain(error)})") from error
