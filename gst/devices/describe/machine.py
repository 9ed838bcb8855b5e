"""Identity of this machine, and the files of measurements that hold for no other machine or torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from gst.devices.describe.discover import cpu_model, usable_cores


def this_machine() -> dict[str, Any]:
    """`machine_record` without the number of threads, which is the caller's affair."""
    return {key: value for key, value in machine_record().items() if key != "threads"}


def machine_file(what: str, directory: Path | None = None) -> Path:
    """The JSON file of this machine in `directory`; in `what` below `cache_directory()` if None."""
    digest = hashlib.sha256(json.dumps(this_machine(), sort_keys=True).encode()).hexdigest()[:16]
    return (directory or cache_directory() / what) / f"{digest}.json"


def machine_record() -> dict[str, Any]:
    """What a reader of a time must know of the machine; no names of hosts or people."""
    record: dict[str, Any] = {"cpu": cpu_model(), "cores": len(usable_cores()), "torch": torch.__version__}
    record["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        record["cuda"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return record


def cache_directory() -> Path:
    """What is compiled for this machine lies here: `$XDG_CACHE_HOME/gst`, or `~/.cache/gst`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gst"
