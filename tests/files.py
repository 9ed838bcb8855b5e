"""Files that tests read: the fixtures, and measured data beside the repository where it is there; and full disks."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "tpugraphs"


def shared_or_fixture(shared: str, fixture: str) -> Path:
    """Return the measured file where shared/data lies beside the repository, else its part in tests/fixtures."""
    return SHARED / shared if (SHARED / shared).exists() else FIXTURES / fixture


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Python ignores SIGXFSZ, so a longer file is an OSError, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
