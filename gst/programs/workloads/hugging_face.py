"""Models of the transformers library, built from their configuration with random weights; nothing is downloaded."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, training_step
from gst.programs.workloads.drawing import tokens

PREFIX = "transformers"
OWN: dict[str, Any] = {"batch": 2, "length": 64, "seed": 0, "optimizer": "sgd"}
"""Arguments that are not the configuration's."""

PUBLISHED = {"bert-base-uncased": "bert", "distilbert-base-uncased": "distilbert"}
"""Names of published models whose sizes are the defaults of their type."""


def hugging_face(name: str, arguments: dict[str, Any] | None = None) -> TrainingStep:
    """A training step of a language model: masked where the library has that, else causal.

    The model is in evaluation mode, as dropout would draw random numbers.

    Args:
        name: a model type of the library ('gpt2', 'bert'), or a name in `PUBLISHED`.
        arguments: attributes of the configuration (`n_layer`), or of `OWN`.

    Raises:
        ValueError: transformers is not installed, or there is no such model or argument.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"{PREFIX}:{name} needs the extra 'models': pip install 'graph-segment-training[models]'"
        ) from error
    given = OWN | (arguments or {})
    config = _config(transformers, name, {key: value for key, value in given.items() if key not in OWN})
    model = _model(transformers, config, given["seed"], f"{PREFIX}:{name}")
    generator = torch.Generator().manual_seed(given["seed"])
    batch_of_tokens = tokens(given["batch"], given["length"], config.vocab_size, generator)

    def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())

    return training_step(f"{PREFIX}-{name}", model, loss_of, batch_of_tokens, given["optimizer"], rate=0.01)


def _config(transformers: Any, name: str, changes: dict[str, Any]) -> Any:
    known = sorted(transformers.CONFIG_MAPPING.keys())
    kind = PUBLISHED.get(name, name)
    if kind not in known:
        similar = get_close_matches(kind, [*known, *PUBLISHED]) or ["gpt2", "bert"]
        raise ValueError(f"transformers has no model type {name!r}; for example {', '.join(similar)}")
    defaults = transformers.AutoConfig.for_model(kind)
    for key in changes:
        if not hasattr(defaults, key):
            raise ValueError(
                f"the configuration of {kind!r} has no {key!r}; see transformers.{type(defaults).__name__}"
            )
    try:
        config = transformers.AutoConfig.for_model(kind, **changes)
    except Exception as error:  # whatever its checks raise
        words = " ".join(str(error).split())
        raise ValueError(f"the configuration of {kind!r} does not take {changes}: {words}") from error
    config.use_cache = False
    return config


def _model(transformers: Any, config: Any, seed: int, name: str) -> nn.Module:
    families = {  # masked first: encoders like BERT are among the causal models too, as decoders of something else
        transformers.AutoModelForMaskedLM: transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.AutoModelForCausalLM: transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    }
    for family, mapping in families.items():
        if type(config) in mapping:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return family.from_config(config).eval()
    raise ValueError(f"{name} is no language model of one sequence of tokens; write a step of your own for it")
