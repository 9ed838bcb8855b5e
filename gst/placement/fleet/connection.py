"""Join a Ray cluster as its controller."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from gst.placement.fleet.host import DISTRIBUTION
from gst.process.interrupts import handlers_kept

HERE = "ray"  # the cluster of this host
CLIENT = "ray://"
RESOURCE = "gst"  # of Ray: how many measurements a host makes at a time
CONNECT_S = 10.0


def is_fleet(workers: str) -> bool:
    """Does `--workers` name a cluster?"""
    return workers == HERE or workers.startswith(CLIENT)


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Be the controller of a cluster: `ray`, the one that runs on this host or else one that is started here and ends
    with this, or `ray://HOST:PORT`, the client server of another one. A process that has joined one already stays.

    What is started here listens on the loopback address alone.

    Raises:
        ValueError: Ray is not installed, or the cluster cannot be had; the message says what to do.
    """
    if not is_fleet(address):
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
        with handlers_kept():  # Ray puts its own in their place
            _connect(address)
    except ValueError:
        raise
    except Exception as error:  # whatever Ray raises
        with suppress(Exception):
            ray.shutdown()
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot join the cluster at {address}: {first}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == HERE:
        running = _running_here()
        if running is None:
            _start_here(quiet)
        else:
            ray.init(running, **quiet)
        return
    if _reached(address) not in ("127.0.0.1", "::1") and "RAY_AUTH_MODE" not in os.environ:
        raise ValueError(
            f"{address} would be joined without authentication; export RAY_AUTH_MODE=token here and on all hosts, see "
            "docs/fleet.md"
        )
    ray.init(address, **quiet)


def _running_here() -> str | None:
    """Address of the cluster of this host: $RAY_ADDRESS, or the one that `ray start` wrote down, if it still runs. Ray
    itself would wait minutes for one that does not."""
    from ray._private.utils import read_ray_address

    if named := os.environ.get("RAY_ADDRESS"):
        _reached(named)
        return named
    with suppress(ValueError):
        if written := read_ray_address():
            _reached(written)
            return str(written)
    return None


def _reached(address: str) -> str:
    """IP address of the host that answers there.

    Raises:
        ValueError: it is no address, or nobody answers.
    """
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"workers {address!r}: want ray://HOST:PORT, such as ray://127.0.0.1:10001")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            return str(connection.getpeername()[0])
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no cluster answers at {address} ({error}); start one there by ray start --head, see docs/fleet.md"
        ) from error


def _start_here(quiet: dict[str, Any]) -> None:
    """Ray itself has new clusters of one host ask for a token (RAY_AUTH_MODE)."""
    import ray
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False  # no other host may join, so nothing listens but on the loopback address
    try:
        resources = {RESOURCE: float(max(1, torch.cuda.device_count()))}
        ray.init("local", resources=resources, include_dashboard=False, **quiet)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
