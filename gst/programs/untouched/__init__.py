"""State that a user's code reaches: what a run changes of it is undone and named, and later changes are noticed."""

from gst.programs.untouched.snapshot import (
    ATTRIBUTE,
    INPUT,
    OUTSIDE,
    TRAINING,
    VALUE,
    Snapshot,
    derived_attributes,
    untouched,
    words,
)
from gst.programs.untouched.watcher import Watcher

__all__ = [
    "ATTRIBUTE",
    "INPUT",
    "OUTSIDE",
    "TRAINING",
    "VALUE",
    "Snapshot",
    "Watcher",
    "derived_attributes",
    "untouched",
    "words",
]
