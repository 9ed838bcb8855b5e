"""The version of this package, also where its files run and nobody has installed them."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "graph-segment-training"


def version() -> str:
    """The version that was installed, `0+not.installed` where none was."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+not.installed"
