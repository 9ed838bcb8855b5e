"""`gst place --wandb`: the plan as a run of W&B, which is sent only for who is logged in."""

from __future__ import annotations

import argparse
import netrc
import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gst.util.untrusted import read_object

SERVICE = "https://api.wandb.ai"
COLUMNS: list[str | int] = ["plan", "feasible", "ms", "seconds_to_plan", "evaluations", "measurements"]


def log_plan(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Log the result of `gst place`: options and versions as configuration, times of all plans, and an artifact of type
    `plan` with `plan.json` and `report.html`. Files of W&B go to `options.out`."""
    import wandb

    from gst.training.record import code_version

    out: Path = options.out
    known = ("program", "devices", "runtime", "num_nodes", "command", "machine")
    config = {name: value for name, value in vars(options).items() if isinstance(value, str | int | float)}
    config |= {name: result[name] for name in known if name in result}
    config |= {"code_version": code_version(), "data_version": read_object(out / "plan.json")["program"]}
    project = os.environ.get("WANDB_PROJECT", "gst")
    with wandb.init(project=project, job_type="place", dir=out.resolve(), mode=usual_mode(), config=config) as run:
        plans = [
            {"plan": name, "ms": plan.get("median_ms", plan.get("latency")) if plan["feasible"] else None, **plan}
            for name, plan in result["plans"].items()
        ]
        table = wandb.Table(columns=COLUMNS, data=[[plan.get(str(column)) for column in COLUMNS] for plan in plans])
        times = {f"plans/{plan['plan']}_ms": plan["ms"] for plan in plans if plan["feasible"]}
        bounds = {name: result[name] for name in ("objective", "lower_bound", "best")}
        run.log({**bounds, **times, "plans_table": table})
        artifact = wandb.Artifact(re.sub("[^A-Za-z0-9_.-]+", "-", f"plan-{result['program']}")[:128], type="plan")
        for name in ("plan.json", "report.html"):
            artifact.add_file(str(out / name))
        run.log_artifact(artifact)


def usual_mode() -> Literal["online", "offline"] | None:
    """Return `online` for who is logged in to W&B, else `offline`; None where `WANDB_MODE` decides."""
    if os.environ.get("WANDB_MODE"):
        return None
    if "WANDB_API_KEY" in os.environ:
        return "online"
    try:
        known = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return "offline"
    return "online" if urlsplit(os.environ.get("WANDB_BASE_URL", SERVICE)).hostname in known else "offline"
