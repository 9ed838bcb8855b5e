"""Shape words of the packages under test are checked while tests run; what tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import jaxtyping
import pytest
import torch
from hypothesis import settings
from tqdm import tqdm

# Not gst.training and gst.cli: jsonargparse reads their signatures.
METHOD = ["cost", "data", "graphs", "method", "nn", "programs", "util.arrays"]
CHECKED = ["embedding_cache", "partitioners", *(f"gst.{name}" for name in METHOD)]
sys.path.append(str(Path(__file__).parents[1]))  # else tests/embedding_cache stands for the package itself
sys.modules["tests"] = ModuleType("tests")  # this folder, also where a package of that name is installed
sys.modules["tests"].__path__ = [str(Path(__file__).parent)]
if find_spec("beartype") is not None:  # tests of a GPU run without these checks where it is missing
    jaxtyping.install_import_hook(CHECKED, "tests.checks.first_calls")
os.environ.setdefault("WANDB__SERVICE_WAIT", "300")  # seconds for W&B's service to start, on a machine that is busy
# What is compiled and measured for this machine is kept in this checkout: a user's own cache stays out of the tests.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "home")
# Inductor and numba share their code, by content, among workers, children, checkouts and runs.
COMPILED = Path.home() / ".cache" / "gst-tests"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(COMPILED / "inductor"))
os.environ.setdefault("NUMBA_CACHE_DIR", str(COMPILED / "numba"))
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # no trial compilation for each instruction set of the processor
beside_others = "PYTEST_XDIST_WORKER" in os.environ
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1" if beside_others else "2")))
settings.register_profile(
    "unhurried", deadline=None, derandomize=True, max_examples=25
)  # the first example waits for libraries
settings.load_profile("unhurried")

from gst.util.progress import LogLines  # noqa: E402
from tests.checks import check_again, without_checks  # noqa: E402, by the path that was added above
from tests.files import shared_or_fixture  # noqa: E402


@pytest.hookimpl(trylast=True)  # what `-m` leaves out does not count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests first, then those with many: else one process ends with them while the other is idle. Tests
    of a GPU stay in the order in which their files are named."""
    if config.option.markexpr == "gpu":
        return
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path]))


@pytest.fixture(autouse=True, scope="module")
def imports_are_no_garbage() -> None:
    """Keep what was imported out of collections of garbage, half a second each, with which each recording begins."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_its_process_as_it_was() -> Iterator[None]:
    """Which tests share a process, and in which order, differs between runs: none may lean on those before it.
    Lightning, Ray and W&B write to the environment; W&B's service keeps the directory that it was started in."""
    environment, before = dict(os.environ), _process()
    check_again()
    LogLines._printed = time.monotonic()  # else a log gets a line by the seconds since the process began
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    assert _process() == before


def _process() -> dict[str, object]:
    return {
        "directory": Path.cwd(),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "cores": os.sched_getaffinity(0),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "bars": [bar.desc for bar in getattr(tqdm, "_instances", ())],  # else later ones stand below them
    }


@pytest.fixture(scope="session")
def alexnet() -> Path:
    return shared_or_fixture("layout/xla/random/train/alexnet_train_batch_32.npz", "alexnet_small.npz")


@pytest.fixture(scope="session")
def tile_kernels() -> list[Path]:
    return sorted(shared_or_fixture("tile/xla/train", "tile").glob("*.npz"))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """So the code's own errors are seen, and times are those of production."""
    with without_checks():
        yield
