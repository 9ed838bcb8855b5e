"""Files of published datasets, in a folder or in a tar archive that somebody else may have written.

Nothing is unpacked to the disk, and declared sizes are checked before memory is allocated.
"""

from __future__ import annotations

import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gst.util.untrusted import plain, shown

MOST_BYTES = 64 << 20  # of one file
MOST_FILES = 10_000  # of an archive
MOST_IN_ALL = 4 << 30  # bytes of the files of an archive that are read


def dataset_files(path: Path, wanted: re.Pattern[str], dataset: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of a folder or a tar archive, which is not unpacked to the disk.

    Args:
        path: the folder, searched at any depth, or the archive.
        wanted: matches the whole path below `path` of a file that is read; its first group is the name.
        dataset: name of the dataset, for messages.

    Raises:
        ValueError: there is no such file, the archive is damaged or too large, or a member leads out of it.

    Examples:
        >>> Path("data").mkdir()
        >>> _ = Path("data/a.csv").write_text("1,2")
        >>> list(dataset_files(Path("data"), re.compile(r"(.*[.]csv)"), "numbers"))
        [('a.csv', b'1,2')]
    """
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            match = wanted.fullmatch(each.relative_to(path).as_posix())
            if match and each.is_file():
                if not each.resolve().is_relative_to(path.resolve()):
                    raise ValueError(f"{each} leads out of {path}; replace the link by its file")
                if each.stat().st_size > MOST_BYTES:
                    raise ValueError(f"{each} has more than {MOST_BYTES} bytes; it is no file of {dataset}")
                yield match[1], each.read_bytes()
        return
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; give the archive of {dataset} or the folder unpacked from it")
    try:
        with tarfile.open(path, "r|*") as archive:
            total = 0
            for number, member in enumerate(archive):
                if number > MOST_FILES:
                    raise ValueError(f"it holds more than {MOST_FILES} files")
                match = wanted.fullmatch(member.name)
                if not match or not member.isfile():
                    continue
                if ".." in PurePosixPath(member.name).parts or member.name.startswith("/"):
                    raise ValueError(f"{shown(member.name)} leads out of the archive")
                if member.size > MOST_BYTES:
                    raise ValueError(f"{shown(member.name)} has more than {MOST_BYTES} bytes")
                total += member.size
                if total > MOST_IN_ALL:
                    raise ValueError(f"its files have more than {MOST_IN_ALL} bytes together")
                content = archive.extractfile(member)
                assert content is not None
                yield match[1], content.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable archive ({plain(error)}); fetch or copy it again") from error
