"""Ray cluster that this process joins as its controller."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gst.util.process import DISTRIBUTION, handlers_kept
from gst.util.untrusted import plain

HERE = "ray"  # the cluster on this host
CLIENT = "ray://"
MEASUREMENTS = "gst"  # resource of Ray: number of simultaneous measurements on a host
CONNECT_S = 10.0


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a Ray cluster as its controller, and leave it at the end, unless this process is in one already.

    `ray` is the cluster that runs on this host; without one, a cluster starts here, which listens on the loopback
    address alone and ends with this context. `ray://HOST:PORT` is the client server of any other.

    Raises:
        ValueError: Ray is not installed, or the cluster does not answer.
    """
    if address != HERE and not address.startswith(CLIENT):
        raise ValueError(f"workers {address!r}: want 'ray' or 'ray://HOST:PORT'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(f'--workers {address} needs Ray: pip install "{DISTRIBUTION}[ray]"') from error
    if ray.is_initialized():
        yield
        return
    try:
        with handlers_kept():  # Ray replaces them
            _connect(address)
    except ValueError:
        raise
    except Exception as error:  # any exception of Ray
        with suppress(Exception):
            ray.shutdown()
        raise ValueError(f"cannot join the cluster at {address}: {plain(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == HERE:
        address_here = _cluster_address_here()
        if address_here is None:
            _start_cluster_here(quiet)
            return
        address = address_here
    if not _is_here(address) and os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled":
        raise ValueError(
            f"{address} would be joined without authentication; export RAY_AUTH_MODE=token here and on all hosts, see "
            "docs/fleet.md"
        )
    ray.init(address, **quiet)


def _cluster_address_here() -> str | None:
    """Return $RAY_ADDRESS, or the address that `ray start` recorded, if that cluster runs; Ray would wait minutes."""
    from ray._private.utils import read_ray_address

    if address := os.environ.get("RAY_ADDRESS"):
        if not _is_here(address):
            raise ValueError(
                f"RAY_ADDRESS is {plain(address)}, another host; name it by --workers ray://HOST:PORT, or unset it"
            )
        return address
    with suppress(ValueError):
        if address := read_ray_address():
            _is_here(address)  # it answers
            return str(address)
    return None


def _is_here(address: str) -> bool:
    """True if this host answers at an address; ValueError if none does."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"workers {address!r}: want ray://HOST:PORT, such as ray://127.0.0.1:10001")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no cluster answers at {address} ({error}); start one there by ray start --head, see docs/fleet.md"
        ) from error


def _start_cluster_here(quiet: dict[str, Any]) -> None:
    """Start a cluster of this host alone; Ray makes it ask for a token (RAY_AUTH_MODE)."""
    import ray
    import torch
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # no other host may join, so it listens on the loopback address alone
    try:
        resources = {MEASUREMENTS: float(max(1, torch.accelerator.device_count()))}
        ray.init("local", resources=resources, include_dashboard=False, **quiet)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
