"""Which code made a run."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
DISTRIBUTION = "graph-segment-training"


def code_version(package: Path = PACKAGE) -> str:
    """The commit of the repository that tracks this program, with `-dirty` where its files differ from it; without such
    a repository, or without git, the version of the package."""
    git = ["git", "-C", str(package)]
    try:
        # An installed package may lie within the repository of somebody else's project, which does not track it.
        _output([*git, "ls-files", "--error-unmatch", "__init__.py"])
        return _output([*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    except (OSError, subprocess.CalledProcessError):
        return metadata.version(DISTRIBUTION)


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
