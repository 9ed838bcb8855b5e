from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_cases import grid

from partitioners import methods, partition, partition_cached

EDGES = grid(8)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The method of each partition that was computed, not read."""
    names: list[str] = []

    def counted(*arguments: object, method: str = "metis", **others: object) -> np.ndarray:
        names.append(method)
        return partition(*arguments, method=method, **others)  # type: ignore[arg-type]

    counted.__signature__ = methods.inspect.signature(partition)  # type: ignore[attr-defined]
    monkeypatch.setattr(methods, "partition", counted)
    return names


def test_the_second_time_it_is_read(tmp_path: Path, computed: list[str]) -> None:
    first, again = (partition_cached(tmp_path / "new" / "place", EDGES, 64, 4, method="ldg") for _ in range(2))
    np.testing.assert_array_equal(first, partition(EDGES, 64, 4, "ldg"))
    np.testing.assert_array_equal(again, first)
    assert again.dtype == np.int64 and computed == ["ldg"]
    assert [path.suffix for path in (tmp_path / "new" / "place").iterdir()] == [".npy"]


def test_every_argument_counts(tmp_path: Path) -> None:
    ones = np.ones(64, np.int64)
    calls = [
        {},
        {"method": "random"},
        {"method": "random", "seed": 1},
        {"method": "auto"},
        {"tolerance": 0.2},
        {"node_weights": ones},
        {"node_weights": 2 * ones},
        {"edge_weights": np.ones(EDGES.shape[1], np.int64)},
    ]
    for arguments in calls:
        partition_cached(tmp_path, EDGES, 64, 4, **arguments)
    partition_cached(tmp_path, EDGES, 64, 5)
    partition_cached(tmp_path, EDGES, 65, 4)
    partition_cached(tmp_path, EDGES[:, 1:], 64, 4)
    assert len(list(tmp_path.iterdir())) == len(calls) + 3


def test_defaults_and_equal_values_of_other_types_are_the_same_call(tmp_path: Path) -> None:
    partition_cached(tmp_path, EDGES, 64, 4)
    partition_cached(tmp_path, EDGES, 64, 4, method="metis", seed=0, node_weights=None)
    assert len(list(tmp_path.iterdir())) == 1


def test_integers_of_numpy_will_do(tmp_path: Path, unchecked: None) -> None:
    partition_cached(tmp_path, EDGES.astype(np.int32), np.int64(64), np.int64(4), seed=np.int64(0))
    partition_cached(tmp_path, EDGES, 64, 4)
    assert len(list(tmp_path.iterdir())) == 1


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_computed_and_written_again(tmp_path: Path, data: st.DataObject) -> None:
    expected = partition_cached(tmp_path, EDGES, 64, 4, method="contiguous")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :])
    np.testing.assert_array_equal(partition_cached(tmp_path, EDGES, 64, 4, method="contiguous"), expected)
    (path,) = tmp_path.iterdir()
    np.testing.assert_array_equal(np.load(path), expected)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    expected = partition_cached(tmp_path, EDGES, 64, 4)
    (path,) = tmp_path.iterdir()
    np.save(path, np.array([print], dtype=object), allow_pickle=True)
    np.testing.assert_array_equal(partition_cached(tmp_path, EDGES, 64, 4), expected)


def test_the_file_of_another_graph_is_not_taken(tmp_path: Path) -> None:
    partition_cached(tmp_path, EDGES, 64, 4)
    (first,) = tmp_path.iterdir()
    content = first.read_bytes()
    first.unlink()
    expected = partition_cached(tmp_path, EDGES, 64, 5)
    (second,) = tmp_path.iterdir()
    second.write_bytes(content)
    np.testing.assert_array_equal(partition_cached(tmp_path, EDGES, 64, 5), expected)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(OSError, match="No space left"):
        partition_cached(tmp_path, EDGES, 64, 4)
    assert list(tmp_path.iterdir()) == []


def test_refuses_what_partition_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ask for at most 64"):
        partition_cached(tmp_path, EDGES, 64, 65)
    with pytest.raises(ValueError, match="node_weights has shape"):
        partition_cached(tmp_path, EDGES, 64, 4, node_weights=np.ones(3, np.int64))
    with pytest.raises(TypeError, match="colour"):
        partition_cached(tmp_path, EDGES, 64, 4, colour="red")
    assert list(tmp_path.iterdir()) == []
