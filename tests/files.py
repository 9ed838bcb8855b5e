"""Files that tests read: the fixtures, and measured data beside the repository where it is there; and full disks."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from gst.graphs.index import checksum_of
from gst.util.arrays import shortened

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


@contextmanager
def changed_records(store: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of the graphs of a store, to be changed; the index fits them afterwards."""
    meta = json.loads((store / "meta.json").read_text())
    records = [json.loads(line) for line in (store / "records.bin").read_text().splitlines()]
    yield records
    lines = [f"{json.dumps(record)}\n".encode() for record in records]
    (store / "records.bin").write_bytes(b"".join(lines))
    meta["files"]["records.bin"] = sum(map(len, lines))
    meta["graphs"]["ends"] = list(accumulate(map(len, lines)))
    meta["records"] = shortened(sha256(b"".join(lines)))
    (store / "meta.json").write_text(json.dumps(meta | {"checksum": checksum_of(meta)}))
