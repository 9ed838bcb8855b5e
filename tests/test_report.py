"""The page of `gst demo`: well formed, complete, safe with hostile text, and honest about who won."""

from __future__ import annotations

import copy
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from gst import charts, drawing
from gst.report import headline, render

VOID = {"meta", "br", "img", "link", "hr", "input"}
HOSTILE = "</title><script>alert('x')</script>\"'&<img src=http://evil.example/x onerror=alert(1)>"


class Page(HTMLParser):
    """Fails on a tag that closes what is not open; collects the tags, attributes and text it saw."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> repeats an attribute: {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def layered(num_nodes: int, seed: int = 0) -> dict[str, Any]:
    """A random layered graph with two edges into each node, cut into stretches of 100 nodes."""
    rng = np.random.default_rng(seed)
    target = np.repeat(np.arange(8, num_nodes), 2)
    source = np.maximum(target - rng.integers(1, 30, len(target)), 0)
    segment = np.arange(num_nodes) // 100
    return {
        "edges": [source.tolist(), target.tolist()],
        "segment": segment.tolist(),
        "device": (segment % 2).tolist(),
        "opcode": [f"aten.op{n % 17}" for n in range(num_nodes)],
    }


def make_record(num_nodes: int = 300) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    kinds = ["baseline", "policy", "mutation", "random"]
    measurements = [
        {
            "label": f"plan {i}",
            "origin": kinds[i % 4],
            "round": i // 4,
            "median_ms": 50.0 - i,
            "low_ms": 49.0 - i,
            "high_ms": 51.5 - i,
            "predicted_ms": None if i < 4 else 51.0 - i + rng.normal(),
            "outcome": "ok",
        }
        for i in range(10)
    ]
    measurements[7] |= {"median_ms": None, "low_ms": None, "high_ms": None, "outcome": "failed"}
    plan = lambda ms: {"median_ms": ms, "low_ms": ms - 1, "high_ms": ms + 1.2, "measurements": 31}  # noqa: E731
    return {
        "program": "rnnlm",
        "num_nodes": num_nodes,
        "num_edges": 2 * num_nodes - 16,
        "machine": {"cpu": "Example CPU", "threads": 2},
        "devices": [{"name": "cpu:0", "description": "core 0"}, {"name": "cpu:1", "description": "core 1"}],
        "graph": layered(num_nodes),
        "measurements": measurements,
        "plans": {
            "pytorch": plan(61.8),
            "single:cpu:0": plan(70.3),
            "chunks": plan(90.6),
            "best": plan(41.2),
        },
        "best": "best",
        "pytorch_ms": 61.8,
        "cost_model": {"tau": 0.637, "num_measured": 10, "num_screened": 4321},
        "table": [
            {"step": s, "age_mean": s / 2, "age_max": s, "share_unknown": 1 / (1 + s)} for s in (0, 10, 20)
        ],
        "seconds": 92.4,
        "command": "gst demo --program rnnlm",
    }


@pytest.fixture
def record() -> dict[str, Any]:
    return make_record()


def test_the_page_is_well_formed_and_says_the_key_numbers(record: dict[str, Any]) -> None:
    page = Page(render(record))
    expected = (
        "41.2 ms",
        "40.2\u201342.4",
        "61.8 ms",
        "1.50x",
        "0.88x",
        "0.68x",
        "chunks",
        "0.64",
        "4,321",
        "plan 9",
        "Example CPU",
        "core 1",
        "gst demo --program rnnlm",
        "failed",
        "aten.op3",
    )
    assert [words for words in expected if words not in page.text] == []
    assert page.tags.count("h1") == 1 and page.tags.count("h2") == 6
    assert page.tags.count("circle") >= 300 + 4


def test_every_chart_has_a_name_and_numbers_beneath(record: dict[str, Any]) -> None:
    page = render(record)
    charts_of_page = page.split('<svg class="chart"')[1:]
    assert len(charts_of_page) == 7
    for chart in charts_of_page:
        assert chart.startswith(' role="img" aria-label="') and "<title>" in chart[:400]
    assert page.count("<details>") == 6  # the table of plans stands open beside its chart


@pytest.mark.parametrize(
    ("base", "found", "says"),
    [
        (61.8, 41.2, "so it is 1.50x as fast"),
        (38.0, 41.2, "so it is 0.92x as fast: plain PyTorch is faster here"),
        (41.0, 41.2, "so it is 1.00x as fast, but the intervals overlap: not settled which is faster"),
    ],
)
def test_the_headline_is_honest(record: dict[str, Any], base: float, found: float, says: str) -> None:
    for name, time in (("pytorch", base), ("best", found)):
        record["plans"][name] |= {"median_ms": time, "low_ms": time - 1, "high_ms": time + 1}
    assert headline(record).startswith("Best plan 41.2 ms (40.2\u201342.2) on 2 devices; plain PyTorch ")
    assert headline(record).endswith(says)


def test_a_search_that_ends_at_plain_pytorch_says_so(record: dict[str, Any]) -> None:
    record["best"] = "pytorch"
    assert headline(record) == "No plan beat plain PyTorch: 61.8 ms (60.8\u201363.0)"


def hostile(value: Any) -> Any:
    if isinstance(value, str):
        return value if value in ("ok", "failed", "pytorch") else value + HOSTILE
    if isinstance(value, dict):
        return {(key if key in KEYS else hostile(key)): hostile(entry) for key, entry in value.items()}
    return [hostile(entry) for entry in value] if isinstance(value, list) else value


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values()))
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


KEYS = _keys(make_record()) - {"cpu", "threads", "single:cpu:0", "chunks", "best"} | {"best"}


@pytest.mark.parametrize("num_nodes", [300, 5_200])
def test_hostile_text_stays_text(num_nodes: int) -> None:
    record = make_record(num_nodes)
    clean, page = Page(render(record)), Page(render(hostile(record)))
    assert set(page.tags) == set(clean.tags) and page.tags.count("script") == 1 and "img" not in page.tags
    assert "alert('x')" in page.text
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_the_page_loads_nothing(record: dict[str, Any]) -> None:
    page = render(record)
    links = [
        value for name, value in Page(page).attributes if name in ("src", "href", "xlink:href", "action")
    ]
    assert links and all(value and value.startswith("#") for value in links), links
    assert "url(" not in page and "@import" not in page and "http:" not in page and "https:" not in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("missing", [None, *make_record()])
def test_missing_pieces_become_sentences(record: dict[str, Any], missing: str | None) -> None:
    for key in record if missing is None else [missing]:
        record[key] = None
    page = Page(render(record))
    for key, sentence in {
        "plans": "No plan was measured again",
        "measurements": "The search measured no plan",
        "graph": "no graph to draw",
        "table": "without an embedding table",
        "devices": "No devices were recorded",
    }.items():
        assert (sentence in page.text) == (missing in (None, key)), key
    Page(render({name: value for name, value in record.items() if value is not None}))


def test_not_a_number_never_reaches_the_page(record: dict[str, Any]) -> None:
    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: entry if key == "graph" else spoil(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [spoil(entry) for entry in value]
        return math.nan if isinstance(value, float) else value

    page = render(spoil(copy.deepcopy(record))).lower()
    for word in ("nan", "none ms", '"inf'):
        assert word not in page.replace("role=", "").split("</style>")[1].split("<script>")[0], word
    partly = copy.deepcopy(record)
    partly["measurements"][5]["median_ms"] = math.inf
    partly["plans"]["chunks"] |= {"low_ms": None, "high_ms": math.nan}
    partly["table"][2]["age_mean"] = None
    partly["cost_model"]["tau"] = None
    page = render(partly)
    drawn = Page(page).text + " ".join(page.split("<script>")[0].split("<svg")[1:])
    assert "was not computed" in drawn and not re.search(r"\b(nan|inf|None)\b", drawn)


@pytest.mark.parametrize("num_nodes", [3_000, 5_000, 5_001, 60_000])
def test_the_page_stays_small(num_nodes: int) -> None:
    page = render(make_record(num_nodes))
    assert len(page.encode()) < 1_000_000
    dots = page.count("<circle")
    assert dots > num_nodes if num_nodes <= drawing.MAX_NODES else dots < 2_500


def test_depths_by_hand() -> None:
    # 0 -> 1 -> 2 -> 4 and 3 -> 4: the source 3 stands next to its reader; 5 <-> 6 is a cycle, 7 is alone.
    edges = np.array([[0, 1, 2, 3, 5, 6], [1, 2, 4, 4, 6, 5]])
    assert drawing.depths(edges, 8).tolist() == [0, 1, 2, 2, 3, 4, 4, 0]


def test_nodes_never_share_a_place() -> None:
    graph = layered(900)
    column, lane = drawing.places(np.array(graph["edges"]), 900)
    assert lane.min() >= 0 and lane.max() <= drawing.MAX_LANES - 1
    for place in np.unique(column):
        assert (np.diff(np.sort(lane[column == place])) > 0.99).all()


def test_joined_segments_differ_in_colour() -> None:
    ring = np.arange(40)
    edges = np.stack([np.r_[ring, ring], np.r_[ring + 1, ring + charts.NUM_COLOURS] % 40])
    colour = drawing.colours(edges, 40)
    assert (colour[edges[0]] != colour[edges[1]]).all()


def test_ticks_are_round_and_inside() -> None:
    assert charts.Axis(0.0, 10.0, 0, 100).ticks() == [0, 2, 4, 6, 8, 10]
    log = charts.Axis.fit([1.0, 90.0], 0, 100)
    assert log.log and log.ticks() == [1, 2, 5, 10, 20, 50, 100]


def test_a_saved_record_renders_to_the_same_page(record: dict[str, Any]) -> None:
    assert render(json.loads(json.dumps(record))) == render(record)
