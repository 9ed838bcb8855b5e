"""Reader of GraphNet sources: shapes as execution gives them, and nothing of a source is executed."""

import tarfile

import pytest
import torch

from experiments.reproductions.graphnet.reader import FxSource, operator_graph, parse_weights, read_sources
from tests.files import FIXTURES, ROOT

FIXTURE = FIXTURES / "graphnet"
ARCHIVE = ROOT.parent / "shared" / "data" / "graphnet_timm.tar.xz"


@pytest.fixture
def source() -> FxSource:
    (only,) = read_sources(FIXTURE)
    return only


def small(line: str) -> FxSource:
    """A source whose forward holds one line, on an input x of (1, 3, 8, 8)."""
    weights = 'class A:\n    name = "x"\n    shape = [1, 3, 8, 8]\n    dtype = "torch.float32"\n    data = None\n'
    return FxSource("small", f"class G:\n    def forward(self, x):\n        y = {line}\n        return (y,)\n", weights)


def test_shapes_are_those_of_an_execution(source):
    weights = parse_weights(source.weights, "small")
    scope = {"torch": torch}
    exec(source.model, scope)  # the fixture is ours
    inputs = [1 if name == "s1" else torch.ones(weight.shape) for name, weight in weights.items()]
    (expected,) = scope["GraphModule"]().forward(*inputs)
    operations = operator_graph(source)
    assert operations[-1].writes[0].shape == tuple(expected.shape)
    assert [each.kind for each in operations] == [
        "conv2d", "batch_norm", "relu", "mean", "dropout", "reshape", "linear", "chunk", "add", "mul"
    ]  # fmt: skip


def test_images_of_another_size(source):
    first = operator_graph(source, image_size=64)[0]
    assert first.writes[0].shape == (1, 16, 32, 32)


def test_images_in_nhwc_stay_so(source):
    for operation in operator_graph(source, is_channels_last=True)[:3]:
        height, width = operation.writes[0].shape[2:]
        assert operation.writes[0].strides == (16 * height * width, 1, 16 * width, 16)
    permuted = small("x.permute(0, 2, 3, 1)")
    strides = [operator_graph(permuted, is_channels_last=last)[0].writes[0].strides[-1] for last in (False, True)]
    assert strides == [64, 1]


def test_views_move_no_data_and_operations_in_place_write_their_memory(source):
    by_kind = {each.kind: each for each in operator_graph(source)}
    assert by_kind["chunk"].is_view
    assert not by_kind["relu"].is_view
    assert by_kind["relu"].writes[0].storage == by_kind["batch_norm"].writes[0].storage
    assert by_kind["relu"].writes[0].name != by_kind["batch_norm"].writes[0].name


def test_values_of_parameters_alone_do_not_grow_with_the_batch(source):
    operations = operator_graph(source)
    assert [value.is_parameter for value in operations[0].reads] == [False, True]
    assert not operations[-1].writes[0].is_parameter


@pytest.mark.parametrize("line", [
    "__import__('os').system('touch executed')", "torch.load('x')", "x.__class__", "x.numpy()", "(lambda: 1)()",
    "[each for each in x]", "open('executed', 'w')", "torch.ops.load_library('x')", "eval('1')", "x.apply_(print)",
    "x._backward_hooks", "getattr(x, 'data')", "x.to(*[1])", "x if x else x", "f'{x}'", "x.tofile('executed')",
])  # fmt: skip
def test_other_calls_are_refused_and_nothing_is_executed(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"small/model.py, line 3: "):
        operator_graph(small(line))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        "10 ** 10 ** 10",
        "x.view(7, 7)",
        "torch.cat([x, x.mean()])",
        "unknown + x",
        "'a' * 5",
        "torch.zeros(10**15) + x.view(3)",
    ],
)
def test_contradictions_name_their_line(line):
    with pytest.raises(ValueError, match=r"small/model.py, line 3: "):
        operator_graph(small(line))


def test_a_weight_without_a_shape_is_named():
    with pytest.raises(ValueError, match=r"broken/weight_meta.py, line 1: want a name, a shape"):
        parse_weights('class A:\n    name = "x"\n    dtype = "torch.float32"\n', "broken")


def test_a_source_that_is_no_python_is_named():
    with pytest.raises(ValueError, match=r"small/model.py: .*want Python source"):
        operator_graph(FxSource("small", "def (", ""))


def test_an_archive_reads_as_its_folder(source, tmp_path):
    path = tmp_path / "some.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        archive.add(FIXTURE, "timm")
    assert list(read_sources(path)) == [source]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"some\.tar\.xz"):
        list(read_sources(path))


def test_a_sample_without_weights_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.py").write_text("")
    with pytest.raises(ValueError, match=r"one has no weight_meta\.py"):
        list(read_sources(tmp_path))


@pytest.mark.skipif(not ARCHIVE.exists(), reason="needs ../shared/data/graphnet_timm.tar.xz")
def test_published_sources_have_operators_of_their_tables():
    counts = {}
    for each in read_sources(ARCHIVE):
        if each.name in (
            "convnext_atto.d2_in1k",
            "vit_tiny_patch16_224.augreg_in21k",
            "resnet18.a1_in1k",
            "vgg11.tv_in1k",
        ):
            products = [step for step in operator_graph(each) if step.kind in ("conv2d", "linear")]
            counts[each.name] = len(products)
    assert counts and all(counts.values())
