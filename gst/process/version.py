"""The version of this package, also where its files run and nobody has installed them."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "graph-segment-training"


def version() -> str:
    """That of the last tag when it was installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+not.installed"
