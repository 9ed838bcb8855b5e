"""`gst place` on an accelerator, as users call it: a program on two streams, with chains of operations compiled.

python -m experiments.bench.gpu.place SETTINGS.json    # out: a line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.child import child_environment
from experiments.bench.gpu.record import print_rows


def reports(settings: Mapping[str, Any], devices: Sequence[str]) -> dict[str, Any]:
    """Return the winner, and milliseconds of each variant and plan.

    Args:
        settings: `program`, and `seconds` of planning.
        devices: names.

    Raises:
        ValueError: the command failed; the last line that it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [
            sys.executable, "-m", "gst.cli", "place", settings["program"], "--devices", ",".join(devices),
            "--tasks", "placement,schedule,fusion", "--seconds", str(settings["seconds"]), "--out", f"{folder}/out",
            "--json", path,
        ]  # fmt: skip
        ran = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
        lines = ran.stderr.strip().splitlines() or ["no words"]
        if ran.returncode:
            raise ValueError(lines[-1][:300])
        result = json.loads(path.read_text())
    plans = {name: {"median_ms": each["median_ms"], "reason": each["reason"]} for name, each in result["plans"].items()}
    eager = [line for line in lines if "runs eagerly" in line]
    keys = ("program", "devices", "winner", "winner_ms", "pytorch_ms", "compiled_ms")
    return {key: result[key] for key in keys} | {"plans": plans, "eager": eager}


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    print_rows(lambda device: [reports(settings, [str(device), f"{device}/stream:1"])])
