"""Addresses, such as `s3://bucket/stores`, which fsspec serves. No other module knows fsspec.

Credentials are those that the library of a protocol reads by itself: environment, profile. fsspec and that library are
imported once an address is given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "sha256")
"""Fields of object stores that change with the content of an object."""

_ADDRESS = re.compile(r"(?P<chain>[A-Za-z][\w+.-]*::)?(?P<protocol>[A-Za-z][\w+.-]*):/+(?P<rest>.*)", re.DOTALL)


class Unreachable(ValueError):
    """An address gives no answer, or half of one; the same command may have more luck later."""


class Address(str):
    """Place that fsspec serves: a text with `/`, `name` and `parent` of a path."""

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self}/{name}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def parent(self) -> Address:
        return Address(self.rpartition("/")[0])


class Details(NamedTuple):
    """Size of an object in bytes, and a text that changes with its content, "" if the protocol has none."""

    size: int
    tag: str


def place(path: Path | str) -> Path | Address:
    """Return a local path, also of `file:///path`, or the address in a text or in a path.

    Examples:
        >>> place("runs/stores"), place("file:///data/stores")
        (PosixPath('runs/stores'), PosixPath('/data/stores'))
        >>> place("memory://stores/")
        'memory://stores'

    Raises:
        ValueError: nothing here serves such an address, or it holds a password.
    """
    match = _ADDRESS.fullmatch(os.fspath(path))
    if match is None:
        return Path(path)
    address, protocol = Address(f"{match['protocol']}://{match['rest'].rstrip('/')}"), match["protocol"].lower()
    if match["chain"] or "::" in address:
        raise ValueError(f"{path}: chains of protocols are not served; give the address of the data itself")
    if re.match(r"[^/@]*:[^/@]*@", match["rest"]):
        raise ValueError(f"an address of {protocol}:// holds a password; its library reads it from the environment")
    if protocol in ("file", "local"):
        if re.match(r"\w+://[^/]", os.fspath(path)):
            raise ValueError(f"{path} names another host; want file:///{match['rest']}")
        return Path("/" + match["rest"])
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        known = "a local folder, or an address such as s3://bucket/folder"
        raise ValueError(f"{address}: no file system of fsspec is called {protocol}; give {known}") from None
    except ImportError as error:
        package = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        words = f"needs the package {package}: pip install {package}" if package else f"cannot be served ({error})"
        raise ValueError(f"{address}: {protocol}:// {words}") from None
    return address


def refuse_address(path: Path) -> None:
    """Raise ValueError for a path that was made of an address, where only local files are written."""
    if _ADDRESS.fullmatch(str(path)):
        raise ValueError(f"{path} is an address; this is written to a local folder, or ./{path} if that is its name")


def details(address: Address, from_listing: bool = False) -> Details | None:
    """Return size and tag of an object; None if there is none.

    Args:
        from_listing: a listing made before may tell, such as that of `matches`.
    """
    with _served(address) as (files, path):
        if not from_listing:
            files.invalidate_cache()
        try:
            found = files.info(path)
        except FileNotFoundError:
            return None
        if found.get("type") == "directory":
            return None
        tag = next((str(found[name]).strip('"') for name in TAGS if found.get(name)), "")
        return Details(int(found["size"]), tag)


def matches(pattern: Address) -> list[Address]:
    """Return the addresses of the objects that match a pattern of `glob`, in alphabetical order."""
    with _served(pattern) as (files, path):
        files.invalidate_cache()
        return sorted(Address(place(files.unstrip_protocol(each))) for each in files.glob(path))


def write_object(address: Address, content: bytes) -> None:
    """Write a small object, whole or not at all."""
    with _served(address) as (files, path):
        _make_folder(files, path)
        files.pipe_file(path, content)


def _make_folder(files: Any, path: str) -> None:
    """Make the folder of a path where there are folders; stores of objects would make a bucket."""
    if not files.async_impl:
        files.makedirs(path.rpartition("/")[0], exist_ok=True)


def upload(file: Path, address: Address) -> Details:
    """Write a file as an object, unless one of its size is there, and return the details of the object."""
    size = file.stat().st_size
    if (found := details(address)) is None or found.size != size:
        with _served(address) as (files, path):
            _make_folder(files, path)
            files.put_file(str(file), path)
        found = details(address)
    if found is None or found.size != size:
        raise Unreachable(f"{address}: {size} bytes were written, {'none' if found is None else found.size} are there")
    return found


def read_ranges(ranges: Sequence[tuple[Address, int, int]]) -> list[bytes]:
    """Return the bytes start..stop of objects of one file system, which are requested several at once.

    Raises:
        Unreachable: an object ends before its range does.
    """
    with _served(ranges[0][0]) as (files, _):
        paths, starts, stops = zip(*((files._strip_protocol(address), *each) for address, *each in ranges), strict=True)
        parts: list[bytes] = files.cat_ranges(list(paths), list(starts), list(stops), on_error="raise")
    for (address, start, stop), part in zip(ranges, parts, strict=True):
        if len(part) != stop - start:
            raise Unreachable(f"{address} ends within bytes {start}..{stop}; it was cut since it was opened")
    return parts


def download(address: Address, file: Path, size: int) -> None:
    """Write an object of so many bytes to a file."""
    with _served(address) as (files, path):
        files.get_file(path, str(file))
    if file.stat().st_size != size:
        raise Unreachable(f"{address}: {file.stat().st_size} of {size} bytes arrived")


def remove(folder: Address) -> None:
    """Remove all objects below an address."""
    with _served(folder) as (files, path):
        files.rm(path, recursive=True)


@contextmanager
def _served(address: Address) -> Iterator[tuple[Any, str]]:
    """Yield the file system of an address and the path in it; its errors become one line that names the address."""
    from fsspec.core import url_to_fs

    from gst.util.untrusted import first_line  # imports torch, and paths are read before

    try:
        yield url_to_fs(str(address))
    except Unreachable:
        raise
    except FileNotFoundError as error:
        raise ValueError(f"{address}: there is no such object or bucket") from error
    except PermissionError as error:
        words = "credentials come from the environment or the profile of its library"
        raise ValueError(f"{address}: access is denied ({first_line(error)}); {words}") from error
    except Exception as error:  # of any library: botocore, aiohttp and others have classes of their own
        if isinstance(error.__context__, RecursionError):  # botocore follows an answer that names no region for ever
            raise ValueError(f"{address}: another region has it; AWS_DEFAULT_REGION names the region") from error
        raise Unreachable(f"{address}: {first_line(error)}") from error
