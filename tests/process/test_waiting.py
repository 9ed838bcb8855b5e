"""What the user has set stays; what is missing is set, and PyTorch's own process is spared it."""

from gst.process.tuning import WAITING, wait_briefly


def test_what_is_set_stays_and_what_is_missing_is_set() -> None:
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "HOME": "/"}
    wait_briefly(environment)
    assert environment == {"HOME": "/", "GOMP_SPINCOUNT": WAITING["GOMP_SPINCOUNT"], "OMP_WAIT_POLICY": "PASSIVE"}
