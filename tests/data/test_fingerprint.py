from __future__ import annotations

import os
from pathlib import Path

from gst.data.source import fingerprint_of_files


def test_a_change_of_any_file_or_of_the_reader_is_told(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        file.write_text("graph")
        os.utime(file, ns=(0, 0))
    prints = [fingerprint_of_files(files, "reader 1")]
    assert fingerprint_of_files(files, "reader 1") == prints[0]
    prints.append(fingerprint_of_files(files, "reader 2"))
    prints += [fingerprint_of_files(some, "reader 1") for some in (files[:1], files[::-1])]
    os.utime(files[1], ns=(0, 1))
    prints.append(fingerprint_of_files(files, "reader 1"))
    files[1].write_text("longer graph")
    os.utime(files[1], ns=(0, 1))
    prints.append(fingerprint_of_files(files, "reader 1"))
    assert len(set(prints)) == len(prints)
