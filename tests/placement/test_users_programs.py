"""Programs as users write them: state, special tensors, outputs in classes, arguments by keyword."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import gst
from gst.placement.planning import Settings

QUICK = Settings(evaluations=50, methods=("annealing",), repetitions=5, patience_s=0.0, compile_step=False)
CPU: dict[str, Any] = {"devices": "cpu:0", "budget": 0, "settings": QUICK}
X = torch.linspace(-1, 1, 12).reshape(4, 3)


class BiasCache(nn.Module):
    """Keeps a tensor in an attribute, as attention biases of EfficientFormer (pytorch#155114)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.cache = nn.Parameter(torch.linspace(0, 1, 3)), {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "cpu" not in self.cache:
            self.cache["cpu"] = self.bias * 2
        return (x + self.cache["cpu"]).softmax(-1)


class Recurrent(nn.Module):
    """Keeps its hidden state in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(3, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.cell(x, self.hidden)
        return self.hidden


class KeyCache(nn.Module):
    """Writes into a buffer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys.add_(x)
        return self.keys * 2


class Counter(nn.Module):
    """Counts its calls in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(3, 3), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(1)
        return self.linear(x) * len(self.calls)


class Shifts(nn.Module):
    """Writes to its input, which it returns."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            x.add_(0.5)
        return x * x, x


def test_an_input_that_is_written_to_and_returned_is_written_to_by_calls() -> None:
    """A plan would return the new value alone: found by random programs 63 and 120."""
    placed = gst.place(Shifts(), (torch.ones(4, 3),), **CPU)
    assert "it writes to an input in place and returns it, so it runs as written" in placed.explain()
    function = gst.placed(**CPU)(lambda x: (x.mul_(2), x))
    for run, want in ((placed.module(), 2.0), (function, 4.0)):
        x = torch.ones(4, 3)
        for _ in range(2):
            *_, returned = run(x)
        assert torch.equal(returned, x) and torch.equal(x, torch.full((4, 3), want))


@pytest.mark.parametrize(
    ("make", "name"), [(BiasCache, "cache['cpu']"), (Recurrent, "hidden"), (KeyCache, "keys"), (Counter, "calls[0]")]
)
def test_a_model_that_keeps_state_runs_as_written(make: Callable[[], nn.Module], name: str) -> None:
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    twin = copy.deepcopy(model)
    placed = gst.place(model, X, **CPU)
    assert placed.winner == "pytorch" and f"it changes {name}" in placed.explain()
    fast = placed.module()
    for call in range(4):
        torch.testing.assert_close(fast(X + call), twin(X + call), rtol=0, atol=0)


def _trained(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 5) -> list[torch.Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


@pytest.mark.parametrize("updates", [True, False])
def test_a_step_that_trains_the_users_model_is_refused_and_leaves_it(updates: bool) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return model, torch.optim.AdamW(model.parameters(), 1e-2)

    model, optimizer = fresh()

    @gst.placed(**CPU)
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        if updates:
            optimizer.step()
        return loss.detach()

    with pytest.raises(ValueError, match=r"it changes .*the gradient of model.*training_step"):
        step(X)
    assert all(each.grad is None for each in model.parameters()) and not optimizer.state
    want_model, want_optimizer = fresh()
    got, want = _trained(optimizer, model), _trained(want_optimizer, want_model)
    assert all(map(torch.equal, got, want)), "it trains as if it had never been placed"


class Convolution(nn.Module):
    """A graph convolution with an adjacency matrix as a buffer or as an input (pytorch#150083, #130687)."""

    def __init__(self, adjacency: torch.Tensor | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(torch.sparse.mm(self.adjacency if adjacency is None else adjacency, x))


class Dequantized(nn.Module):
    """Reads a quantized buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.quantize_per_tensor(X, 0.1, 0, torch.qint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.dequantize()


class Applied(nn.Module):
    """Returns what a function makes of the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


SPARSE = torch.eye(4).to_sparse()
NESTED = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*nested tensors")
@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (Convolution(torch.eye(4).to_sparse_csr()), (X,), "adjacency is a sparse CSR tensor"),
        (Convolution(SPARSE), (X,), "adjacency is a sparse COO tensor"),
        (Convolution(), (X, SPARSE), "input 1 is a sparse COO tensor"),
        (Applied(lambda x: torch.stack([each.sum(0) for each in x.unbind()])), (NESTED,), "input 0 is a nested tensor"),
        (Dequantized(), (X,), "table is a quantized tensor"),
        (Applied(lambda x: x.relu().to_sparse()), (X,), "sparse COO tensor"),
        (Applied(lambda x: x.to_dense() * 2), (X.to_mkldnn(),), "input 0 is a MKL-DNN tensor"),
    ],
)
def test_special_tensors_run_whole(model: nn.Module, inputs: tuple[Any, ...], words: str, tmp_path: Path) -> None:
    model.eval().requires_grad_(False)
    placed = gst.place(model, inputs, **CPU)
    got, want = placed.module()(*inputs), model(*inputs)
    assert got.layout == want.layout and words in placed.explain()
    torch.testing.assert_close(got, want)


@dataclass
class Output:
    """No registered pytree (pytorch#168890)."""

    logits: torch.Tensor
    hidden: dict[str, torch.Tensor]
    name: str = "mine"
    missing: None = None


@dataclass(frozen=True)
class Frozen:
    parts: list[Output] = field(default_factory=list)


class Pair(NamedTuple):
    first: torch.Tensor
    second: Any


class Opaque:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


OUTPUTS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: Output(x, {"twice": x * 2}),
    lambda x: Frozen([Output(x, {}), Output(x + 1, {"a": x})]),
    lambda x: Pair(x, Pair(x + 1, "text")),
    lambda x: {"a": {"b": [x, None, 3]}, "c": "text"},
]


class Returning(nn.Module):
    """Returns the result of a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def _same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            _same(got[key], want[key])
    elif isinstance(want, list | tuple):
        for pair in zip(got, want, strict=True):
            _same(*pair)
    elif hasattr(want, "__dict__"):
        _same(vars(got), vars(want))
    else:
        assert got == want


@pytest.mark.parametrize("function", OUTPUTS)
def test_outputs_keep_their_classes_in_a_capture(function: Callable[[torch.Tensor], Any]) -> None:
    model = Returning(function).eval().requires_grad_(False)
    placed = gst.place(model, X, **CPU)
    _same(placed.module()(X + 1), model(X + 1))
    program = gst.programs.capture_module(model, (X,))
    weights = [each.detach() for each in model.parameters()]
    _same(program.unflatten(gst.lowering.calls.eager(program, [*weights, X + 1])), model(X + 1))


@pytest.mark.e2e
def test_a_plan_returns_the_dataclass_of_the_model() -> None:
    model = Returning(OUTPUTS[0]).eval().requires_grad_(False)
    placed = gst.place(model, X, devices="cpu:0", budget=1, seconds=None, settings=QUICK)
    module = placed.module("plan")
    _same(module(X + 1), model(X + 1))
    module.close()


def test_an_output_of_another_class_is_returned_by_the_model_whole() -> None:
    model = Returning(Opaque).eval().requires_grad_(False)
    placed = gst.place(model, X, **CPU)
    _same(placed.module()(X), model(X))
    assert "is a Opaque" in placed.explain()


class Options(nn.Module):
    """Takes optional arguments, and one by keyword alone."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, scale: float = 1.0
    ) -> torch.Tensor:
        x = x if mask is None else x * mask
        return (x if bias is None else x + bias) * scale


MASK = torch.ones(4, 3)


@pytest.mark.parametrize(
    "example", [{"x": X, "mask": MASK}, (X, MASK), {"mask": MASK, "x": X, "bias": None}, [X, MASK, None]]
)
@pytest.mark.filterwarnings("error")
def test_calls_are_those_of_the_model(example: Any) -> None:
    fast = gst.place(Options(), example, **CPU).module()
    want = Options()(X + 1, MASK)
    for got in (
        fast(X + 1, MASK), fast(x=X + 1, mask=MASK), fast(X + 1, mask=MASK), fast(mask=MASK, x=X + 1),
        fast(X + 1, MASK, None), fast(X + 1, MASK, scale=1.0),
    ):  # fmt: skip
        torch.testing.assert_close(got, want)


def test_arguments_by_keyword_alone_and_gaps(tmp_path: Path) -> None:
    model = Options().eval()
    placed = gst.place(model, {"x": X, "bias": MASK, "scale": 2.0}, **CPU)
    fast = placed.module()
    torch.testing.assert_close(fast(X, None, MASK, scale=2.0), model(X, bias=MASK, scale=2.0))
    with pytest.warns(UserWarning, match="other arguments are given than in the example"):
        torch.testing.assert_close(fast(X), X)
    placed.save(tmp_path / "file")
    again = gst.load(tmp_path / "file", model).module()
    torch.testing.assert_close(again(x=X, scale=2.0, bias=MASK), model(X, bias=MASK, scale=2.0))


class Batch(nn.Module):
    """Takes one dictionary, or any keywords."""

    def forward(self, batch: dict[str, torch.Tensor] | None = None, **others: torch.Tensor) -> torch.Tensor:
        return sum((batch or others).values())


class OneDictionary(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["a"] + batch["b"]


def test_a_dictionary_is_one_argument_if_its_keys_are_none() -> None:
    fast = gst.place(OneDictionary(), {"a": X, "b": X}, **CPU).module()
    torch.testing.assert_close(fast({"a": X, "b": X}), 2 * X)
    fast = gst.place(Batch(), {"a": X, "b": X}, **CPU).module()
    torch.testing.assert_close(fast(b=X, a=X + 1), 2 * X + 1)
    with pytest.raises(ValueError, match="does not take these example inputs"):
        gst.place(nn.Linear(3, 3), (X, X), **CPU)


def test_a_placed_step_is_called_by_keyword() -> None:
    @gst.placed(**CPU)
    def step(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return x - y

    for _ in range(2):
        torch.testing.assert_close(step(y=X, x=X + 1), torch.ones(4, 3))
        torch.testing.assert_close(step(X, y=X + 1), -torch.ones(4, 3))
