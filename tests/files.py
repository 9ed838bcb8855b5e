"""Files that tests read: the fixtures, and the measured data beside the repository where it is there."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "tpugraphs"


def shared_or_fixture(shared: str, fixture: str) -> Path:
    """Return the measured file where shared/data lies beside the repository, else its part in tests/fixtures."""
    return SHARED / shared if (SHARED / shared).exists() else FIXTURES / fixture
