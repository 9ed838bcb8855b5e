"""A sequence in, a device for each of its steps out: the placer of ColocRL and of HDP."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


class SequencePlacer(nn.Module):
    """Draws a device for each step of a sequence, one after the other, with an LSTM that encodes the sequence and an
    attentional LSTM that decodes it (Mirhoseini et al., ICML 2017).

    What the decoder reads at a step is the embedding of the device drawn at the step before, and what the encoder says
    of this step; the latter the paper leaves to attention to find. Attention is multiplicative and enters after the
    decoder (Luong et al., Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015), so that
    plans that are known are scored with all steps at once.

    Args:
        num_devices: to choose from.
        hidden: width of each step's embedding, and of the networks.
    """

    def __init__(self, num_devices: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.device = nn.Embedding(num_devices + 1, hidden)  # the last one before anything is drawn
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(3 * hidden, hidden)
        self.logits = nn.Linear(hidden, num_devices)

    def forward(
        self, embedded: Float[Tensor, "rows steps hidden"], devices: Int64[Tensor, "plans steps"]
    ) -> Float[Tensor, "plans steps devices"]:
        """Log probabilities of each device at each step, after what was drawn at the steps before.

        Args:
            embedded: the sequence of each plan, or one for all of them (rows is plans, or 1).
            devices: what was drawn.
        """
        states, (h, c) = self.encoder(embedded)
        here = states.expand(len(devices), -1, -1)
        before = torch.full_like(devices[:, :1], self.logits.out_features)
        drawn = self.device(torch.cat([before, devices[:, :-1]], dim=1))
        first = tuple(each.expand(1, len(devices), -1).contiguous() for each in (h, c))
        decoded, _ = self.decoder(torch.cat([drawn, here], dim=2), first)
        return self._log_probabilities(decoded, states, here)

    @torch.no_grad()
    def sample(
        self, embedded: Float[Tensor, "rows steps hidden"], count: int, generator: torch.Generator
    ) -> Int64[Tensor, "plans steps"]:
        """Draw devices for the steps of `count` plans at once."""
        states, (h, c) = self.encoder(embedded)
        here, state = states.expand(count, -1, -1), (h[0].expand(count, -1), c[0].expand(count, -1))
        num_steps, num_devices = states.shape[1], self.logits.out_features
        exponential = torch.empty(count, num_steps, num_devices, dtype=states.dtype).exponential_(generator=generator)
        drawn = torch.full((count, num_steps + 1), num_devices)
        for step in range(num_steps):
            read = torch.cat([self.device(drawn[:, step]), here[:, step]], dim=1)
            state = torch.lstm_cell(read, state, *self.decoder.parameters())
            scores = self._log_probabilities(state[0][:, None], states, here[:, step : step + 1])
            # The greatest of log p - log(exponential) is of device d with probability p(d) (the Gumbel-max trick).
            drawn[:, step + 1] = (scores[:, 0] - exponential[:, step].log()).argmax(1)
        return drawn[:, 1:]

    def _log_probabilities(
        self, decoded: Float[Tensor, "plans some hidden"], states: Float[Tensor, "rows steps hidden"],
        here: Float[Tensor, "plans some hidden"],
    ) -> Float[Tensor, "plans some devices"]:  # fmt: skip
        queries = self.query(decoded).reshape(len(states), -1, decoded.shape[2])  # of all plans at once if rows is 1
        found = ((queries @ states.transpose(1, 2)).softmax(2) @ states).reshape(decoded.shape)
        mixed = torch.tanh(self.mix(torch.cat([decoded, found, here], dim=2)))
        return self.logits(mixed).log_softmax(2)


def of_drawn(
    log_probabilities: Float[Tensor, "plans steps choices"], drawn: Int64[Tensor, "plans steps"]
) -> tuple[Float[Tensor, " plans"], Float[Tensor, " plans"]]:
    """Log probability of each plan, and the sum of the entropies of its steps, in nats."""
    chosen = log_probabilities.gather(2, drawn[..., None])[..., 0]
    entropy = -(log_probabilities.exp() * log_probabilities).sum(2)
    return chosen.sum(1), entropy.sum(1)
