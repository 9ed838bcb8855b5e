"""Where what was measured of this machine lies, so that nothing is taken from another machine or version of torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gst.devices.measure import machine_record
from gst.devices.native.build import cache_directory


def this_machine() -> dict[str, Any]:
    """`machine_record` without the number of threads, which is the caller's affair."""
    return {key: value for key, value in machine_record().items() if key != "threads"}


def machine_file(what: str, directory: Path | None = None) -> Path:
    """The JSON file of this machine in `directory`; in `what` below `cache_directory()` if None."""
    digest = hashlib.sha256(json.dumps(this_machine(), sort_keys=True).encode()).hexdigest()[:16]
    return (directory or cache_directory() / what) / f"{digest}.json"
