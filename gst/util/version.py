"""Versions of packages that are installed, and of this one, also where its files run and nobody has installed them."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "graph-segment-training"


def version() -> str:
    """The version that was installed, `0+not.installed` where none was."""
    return version_of(DISTRIBUTION) or "0+not.installed"


def version_of(package: str) -> str:
    """The version that is installed; '' if none is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
