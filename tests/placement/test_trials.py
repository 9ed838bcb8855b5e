"""`torch.compile(backend="gst")` tries graphs on copies: each call writes once what eager PyTorch writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from gst.placement.api.trials import copies_of, lifted, outcome, overlaps
from gst.training.callbacks import PlacedSteps
from gst.util.compiled import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
X, Y = torch.linspace(-1, 1, 48).reshape(16, 3), torch.linspace(-2, 2, 16).reshape(16, 1)


def weights_after(make: Callable[..., Any], backend: str | None, whole: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = make(model.parameters())

    def loss() -> None:
        optimizer.zero_grad()
        (model(X) - Y).square().mean().backward()

    def step() -> None:
        loss()
        optimizer.step()

    run = step if backend is None else torch.compile(step if whole else optimizer.step, backend=backend)
    for _ in range(4):
        if not whole and backend is not None:
            loss()
        run()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
    lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, foreach=True),
    lambda p: torch.optim.Adam(p, 1e-2),
    lambda p: torch.optim.AdamW(p, torch.tensor(1e-2), capturable=False, amsgrad=True),
    lambda p: torch.optim.Adagrad(p, 1e-2),
    lambda p: torch.optim.RMSprop(p, 1e-2, centered=True),
], ids=["momentum", "foreach", "adam", "adamw", "adagrad", "rmsprop"])  # fmt: skip
@pytest.mark.usefixtures("compiled_wins")
@pytest.mark.e2e
@needs_compiler
def test_compiled_optimizers_train_as_eager_ones_do(make: Callable[..., Any], whole: bool) -> None:
    torch.testing.assert_close(weights_after(make, "gst", whole), weights_after(make, None, whole), rtol=0, atol=4e-7)


class GAN(L.LightningModule):
    """Two networks and two optimizers, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def training_step(self, batch: Tensor) -> None:
        for_generator, for_critic = self.optimizers()  # type: ignore[misc]
        noise = batch[:, :2].flip(0)
        self.toggle_optimizer(for_critic)
        loss = (self.critic(self.generator(noise)) - self.critic(batch)).mean()
        for_critic.zero_grad()
        self.manual_backward(loss)
        for_critic.step()
        self.untoggle_optimizer(for_critic)
        self.toggle_optimizer(for_generator)
        for_generator.zero_grad()
        self.manual_backward(-self.critic(self.generator(noise)).mean())
        for_generator.step()
        self.untoggle_optimizer(for_generator)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.generator.parameters(), 0.05), torch.optim.Adam(self.critic.parameters(), 0.01)


@pytest.mark.usefixtures("compiled_wins")
@pytest.mark.e2e
@needs_compiler
def test_two_optimizers_of_a_lightning_module_train_as_without_the_callback() -> None:
    torch.manual_seed(0)
    mine = GAN()
    written = copy.deepcopy(mine)
    for model, callbacks in ((mine, [PlacedSteps({"seconds": 1})]), (written, [])):
        trainer = L.Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(X, batch_size=8))
    for got, want in zip(mine.parameters(), written.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=4e-7)


TABLE, PLACES = torch.zeros(6, 2), torch.tensor([0, 2, 2])


def put(x: Tensor) -> Tensor:
    TABLE.index_put_((PLACES,), x, accumulate=True)
    return TABLE.sum(0)


def foreach(x: Tensor) -> Tensor:
    torch._foreach_add_([TABLE[:3], TABLE[3:]], [x, 2 * x])
    return TABLE * 1


def through_a_view(x: Tensor) -> Tensor:
    TABLE[1:4].t()[0].add_(x[:, 0])
    return TABLE.mean(1)


@pytest.mark.parametrize("write", [put, foreach, through_a_view])
@pytest.mark.e2e
@needs_compiler
def test_tensors_that_a_function_closes_over_are_written_once_a_call(
    write: Callable[..., Any], compiled_wins: list[Any]
) -> None:
    results = []
    for run in (write, torch.compile(write, backend="gst")):
        TABLE.zero_()
        x = torch.arange(6.0).reshape(3, 2)
        with torch.no_grad():
            results.append([run(x), run(x + 1), TABLE.clone()])
    torch.testing.assert_close(results[1], results[0])
    assert compiled_wins


@pytest.mark.e2e
@needs_compiler
@pytest.mark.parametrize("aliased_first", [True, False])
def test_inputs_that_share_memory_are_written_as_by_eager_pytorch(
    aliased_first: bool, compiled_wins: list[Any]
) -> None:
    def shift(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.add_(x.sum())
        return x + y

    def calls(run: Callable[..., Any]) -> list[Tensor]:
        results = []
        for apart in (not aliased_first, aliased_first, not aliased_first):
            memory = torch.arange(8.0)
            x, y = (memory[:5].clone(), memory[3:].clone()) if apart else (memory[:5], memory[3:])
            results += [run(x, y), x, y, memory]
        return results

    with torch.no_grad():
        torch.testing.assert_close(calls(torch.compile(shift, backend="gst", dynamic=False)), calls(shift))
    assert compiled_wins


def test_copies_share_memory_as_their_originals_do() -> None:
    memory = torch.arange(12.0)
    values = [
        memory[:6],
        memory[3:9].reshape(2, 3),
        torch.ones(2),
        memory.new_ones(1).expand(3),
        4,
        memory.view(torch.int32),
    ]
    copies = copies_of(values)
    assert overlaps(copies) == overlaps(values) and overlaps(values)[1] == (0, 12)
    copies[0].zero_()
    assert memory.sum() == 66 and copies[1].tolist() == [[0, 0, 0], [6, 7, 8]]


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(x)
        return x * self.weight + self.count


def test_trials_leave_what_a_graph_holds_as_it_is_also_after_an_exception() -> None:
    graph = torch.fx.symbolic_trace(Holds())
    own, held = lifted(graph)
    trial = outcome(own, [torch.ones(2), *held], 0)
    names = [name for name, each in (("weight", graph.weight), ("count", graph.count)) if each is held[0]]
    assert len(held) == 2 and names and len(trial.mutated) == 1 and not graph.count.any()

    def fails(*inputs: Any) -> None:
        torch._C._set_grad_enabled(False)
        own(*inputs)
        raise RuntimeError("as asked")

    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="as asked"):
        outcome(fails, [torch.ones(2), *held], 0)
    assert torch.is_grad_enabled() and not graph.count.any() and torch.equal(torch.get_rng_state(), state)


def test_writes_of_the_same_values_count_as_writes() -> None:
    trial = outcome(lambda x, y: (x.mul_(1), y.fill_(torch.nan)), [torch.ones(2), torch.zeros(2)], 0)
    assert trial.mutated == {0, 1}
