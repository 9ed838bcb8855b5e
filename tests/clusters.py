"""Ray clusters that tests start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gst.util.cluster import joined

ROOT = Path(__file__).parents[1]


def begun(start: Callable[[], object]) -> None:
    """Ray gives a host up that has not started within 30 s, as may happen on a busy machine; so try a few times."""
    for _ in range(3):
        try:
            start()
            return
        except Exception as error:
            failure = error
            if "timed out" not in str(error).lower():
                raise
    raise failure


@contextmanager
def cluster_here(*folders: Path) -> Iterator[pytest.MonkeyPatch]:
    """Join a cluster of this host, whose workers import from the repository and from these folders."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, *folders))))
        begun(lambda: stack.enter_context(joined("ray")))
        yield patch
