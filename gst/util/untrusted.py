"""Readers of files that somebody else may have written: JSON, archives of arrays, saved tensors.

Nothing in such a file is executed, and declared sizes are checked before memory is allocated. Plain data comes out; its
meaning is for the caller to check.
"""

from __future__ import annotations

import json
import pickle
import pkgutil
import re
import reprlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

MOST_TIMES_LARGER = 200
"""Bytes that a compressed archive may unpack to, for each of its own. Measured layouts, which compress best, reach 46.
"""

LAYERS = (
    "APPNP", "ARMAConv", "BatchNorm", "CGConv", "ChebConv", "ClusterGCNConv", "DeepGCNLayer", "EdgeConv",
    "FiLMConv", "GAT", "GATConv", "GATv2Conv", "GCN", "GCN2Conv", "GCNConv", "GENConv", "GIN", "GINConv",
    "GINEConv", "GPSConv", "GatedGraphConv", "GeneralConv", "GraphConv", "GraphNorm", "GraphSAGE", "InstanceNorm",
    "JumpingKnowledge", "LEConv", "LayerNorm", "Linear", "MLP", "NNConv", "PNA", "PNAConv", "PairNorm", "RGCNConv",
    "ResGatedGraphConv", "SAGEConv", "SGConv", "SuperGATConv", "TAGConv", "TransformerConv",
)  # fmt: skip
"""Layers of torch_geometric.nn that any file may name. Others evaluate text that they are given, as its Sequential."""
OF_TRAININGS = ("torch.optim.", "lightning.pytorch.")
"""Packages of further classes in a configuration of `gst fit`: `trusted` of `check_classes`."""
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
MOST_ENTRIES = 1_000_000  # of a configuration
FREE_BYTES = 64 << 20  # that any archive may unpack to
DAMAGE = (
    ValueError, OSError, EOFError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError, OverflowError,
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, pickle.UnpicklingError, tokenize.TokenError, SyntaxError,
    struct.error, AssertionError,
)  # fmt: skip
"""Errors that the readers of these formats raise on a damaged file; torch's unpickler asserts."""


_IMPORTABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def plain(error: BaseException | str, length: int = 200) -> str:
    """Return the first line of a message, cut to `length` characters, without terminal control characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(each if each.isprintable() else "?" for each in lines[0])[:length]


def first_line(error: BaseException, length: int = 200) -> str:
    """Return the class of an error with the first line of its message, as `plain`."""
    return f"{type(error).__name__}: {plain(error, length)}"


def shown(value: Any) -> str:
    """Return a value of a file for a message: short, and without terminal control characters."""
    return plain(_SHORT.repr(value), 80)


def read_json(path: Path) -> Any:
    """Read a JSON file; as in Python, NaN and infinity are allowed.

    Raises:
        ValueError: it is missing, not JSON, or nested too deeply; the message names the file.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        return parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not JSON ({plain(error)})") from error


def parse_json(text: bytes | str) -> Any:
    """Parse the content of a JSON file.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ValueError: as `read_json`, or the file holds something else.
    """
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError(f"{path}: holds a {type(record).__name__}, want an object")
    return record


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name. Arrays of objects are refused, since unpickling runs code.

    Raises:
        ValueError: it is missing, damaged, or would unpack to more than `MOST_TIMES_LARGER` times its size.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path.stat().st_size)
            return {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
    except DAMAGE as error:
        raise ValueError(f"{path}: not a readable npz file ({plain(error)}); fetch or copy it again") from error


def read_tensors(path: Path) -> Any:
    """Read a file of `torch.save` with tensors and plain data, to the CPU.

    Raises:
        ValueError: it is missing, damaged, compressed, older than torch 1.6, or holds other objects.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("it is compressed, as torch.save never does")
            _check_sizes(archive, path.stat().st_size)
        return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise ValueError(f"{path}: not a readable file of tensors ({plain(error)})") from error


def check_weights(make: Callable[[], nn.Module], weights: Mapping[str, Any], counts: Iterable[Any]) -> None:
    """Refuse settings that ask for more weights than their file has, before memory is allocated for them.

    Args:
        make: makes a network of these settings.
        weights: of the file.
        counts: the settings that are numbers of layers, each of which has weights.

    Raises:
        ValueError: the settings are not those of the weights.
    """
    if any(type(count) is not int or count > len(weights) for count in counts):
        raise ValueError(f"it has weights for at most {len(weights)} layers, its settings want more")
    with torch.device("meta"):
        asked = sum(each.numel() for each in make().parameters() if not nn.parameter.is_lazy(each))
    tensors = [each for each in weights.values() if isinstance(each, torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    held = min(sum(each.numel() for each in tensors), sum(storages.values()))  # one byte each at least
    if asked > held:
        raise ValueError(f"it has {held} weights, its settings want {asked}")


def check_classes(settings: Any, trusted: Iterable[str] = (), folder: Path = Path()) -> None:
    """Refuse settings of a file that name another class than those of gst, `LAYERS`, torch.nn and `trusted`, also
    within a text: building a network of them would run that class.

    Args:
        settings: dictionaries, lists and plain values.
        trusted: names of further classes, and beginnings of names, which end in a point, such as `mine.`.
        folder: where relative paths begin.

    Raises:
        ValueError: a class is not trusted, or a text is an address or a file that would be read for settings.
    """
    trusted, waiting = tuple(trusted), [settings]
    networks = _names_of_networks(nn.Module)
    for each in waiting:
        if len(waiting) > MOST_ENTRIES:
            raise ValueError(f"it holds more than {MOST_ENTRIES} settings")
        if isinstance(each, Mapping):
            waiting += each.values()
            named = each.get("class_path")
            if named is not None and not (isinstance(named, str) and _is_known(named, trusted)):
                raise _foreign(named)
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, str) and not _is_known(each, trusted):
            if _IMPORTABLE.fullmatch(each) or not networks.get(each, True):
                raise _foreign(each)
            if "://" in each or "::" in each or _is_text_file(folder / each):
                raise ValueError(f"it names {shown(each)}, which would be read for settings")
            if (inner := _inside(each)) != each:
                waiting.append(inner)


def _foreign(name: Any) -> ValueError:
    more = "if it is yours, give its --config FILE (gst rank: --trust PACKAGE)"
    return ValueError(f"it names {shown(name)}, which is not of this program; {more}")


def _is_known(name: str, trusted: Sequence[str]) -> bool:
    given = tuple(each for each in trusted if each.endswith(".") and each not in OF_TRAININGS)
    if name in (INSTANTIATOR, *trusted) or name.startswith(given):
        return True
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn."):
        return last in nn.modules.__all__
    if name.startswith("torch_geometric.nn."):
        return last in LAYERS
    package = next((each for each in ("gst.", *OF_TRAININGS) if name.startswith(each)), "")
    if package != "gst." and package not in trusted:
        return False
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return False
    is_its_own = isinstance(found, type) and f"{found.__module__}.".startswith(package)  # not what it imports
    return is_its_own and found.__name__ != "PygDataset"  # which builds any class, and unpickles any file


def _names_of_networks(base: type) -> dict[str, bool]:
    """Return the names of imported subclasses, and whether each may be built: the parser needs no module of them."""
    names, waiting = dict[str, bool](), [base]
    for each in waiting:
        waiting += each.__subclasses__()
        known = _is_known(f"{each.__module__}.{each.__qualname__}", ())
        names[each.__name__] = names.get(each.__name__, True) and known
    return names


def _is_text_file(path: Path) -> bool:
    """True for a file that may be YAML, which the parser would read in place of its name."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return b"\0" not in file.read(4096)
    except (OSError, ValueError):  # ValueError: a NUL in its name
        return False


def _inside(text: str) -> Any:
    """Return the settings that the parser would find in a text: those of JSON or YAML, else the text."""
    import yaml  # type: ignore[import-untyped]

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            return text
        except RecursionError:
            raise ValueError("a text in it is nested too deeply") from None


EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d{1,3}")
"""A number with an exponent."""


def check_yaml(path: Path) -> None:
    """Refuse a configuration that its aliases make larger than `MOST_ENTRIES`.

    Raises:
        ValueError: it is missing, too large, or not YAML; the message names the file.
    """
    import yaml

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    sizes: dict[str, int] = {}
    inside: list[tuple[str | None, int]] = [(None, 0)]  # anchor and entries of what is not closed yet
    try:
        for event in yaml.parse(path.read_bytes(), yaml.SafeLoader):
            anchor, entries = getattr(event, "anchor", None), 1
            if isinstance(event, yaml.CollectionStartEvent):
                inside.append((anchor, 1))
                continue
            if isinstance(event, yaml.AliasEvent):
                entries = sizes[event.anchor]
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, entries = inside.pop()
            if anchor is not None and not isinstance(event, yaml.AliasEvent):
                sizes[anchor] = entries
            outer, before = inside.pop()
            inside.append((outer, before + entries))
    except (yaml.YAMLError, LookupError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not YAML ({plain(error)})") from error
    if inside[0][1] > MOST_ENTRIES:
        raise ValueError(f"{path}: its aliases make it larger than {MOST_ENTRIES} entries")


def read_yaml(path: Path) -> Any:
    """Read a configuration that `check_yaml` allows, with `1e-5` as a number, as in YAML 1.2."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's loader of YAML 1.1, in which a number with an exponent needs a point and a sign."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
    check_yaml(path)
    loader = Loader(path.read_bytes())
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _check_sizes(archive: zipfile.ZipFile, file_bytes: int) -> None:
    unpacked, most = sum(info.file_size for info in archive.infolist()), MOST_TIMES_LARGER * file_bytes + FREE_BYTES
    if unpacked > most:
        raise ValueError(f"{file_bytes} bytes would unpack to {unpacked}, more than {most}")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Read an array whose header agrees with the size of its member."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"{info.filename} has a header of version {version}")
        shape, _, dtype = _HEADERS[version](member)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds pickled objects, want numbers")
        declared = dtype.itemsize
        for size in shape:
            declared *= size
        held = info.file_size - member.tell()
        if declared != held:
            raise ValueError(f"{info.filename} declares {declared} bytes of {dtype} {shape} and holds {held}")
    with archive.open(info) as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
    return array


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
