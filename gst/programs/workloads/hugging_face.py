"""Models of the transformers library, built from their configuration with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gst.programs.step import TrainingStep, tokens, training_step
from gst.util.random_numbers import seeded

PREFIX = "transformers"
OWN: dict[str, Any] = {"batch": 2, "length": 64, "seed": 0, "optimizer": "sgd"}
"""Arguments that are not the configuration's."""

IMAGE_SIZE = 224  # pixels, where the configuration does not say

PUBLISHED = {"bert-base-uncased": "bert", "distilbert-base-uncased": "distilbert"}
"""Names of published models whose sizes are the defaults of their type."""


def hugging_face(name: str, arguments: dict[str, Any] | None = None) -> TrainingStep:
    """Return a training step of a language model (masked, else causal, else from one sequence to another), or of a
    classifier of images, in evaluation mode.

    Args:
        name: a model type of the library ('gpt2', 'bert', 't5', 'vit'), or a name in `PUBLISHED`.
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
    own = OWN | (arguments or {})
    config = _config(transformers, name, {key: value for key, value in own.items() if key not in OWN})
    family, names = _family(transformers, config, f"{PREFIX}:{name}")
    with seeded(own["seed"]):
        model = family.from_config(config).eval()
    generator = torch.Generator().manual_seed(own["seed"])
    draw = _images if "pixel_values" in names else _tokens
    batch = draw(config, names, own, generator)

    def loss_of(model: nn.Module, *tensors: Tensor) -> Tensor:
        *inputs, targets = tensors
        logits = model(**dict(zip(names, inputs, strict=True))).logits
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    return training_step(f"{PREFIX}-{name}", model, loss_of, batch, own["optimizer"], rate=0.01)


def _tokens(config: Any, names: Sequence[str], own: dict[str, Any], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Tokens (batch, length) for each name, and targets (batch, length)."""
    first, targets = tokens(own["batch"], own["length"], config.vocab_size, generator)
    more = [tokens(own["batch"], own["length"], config.vocab_size, generator)[0] for _ in names[1:]]
    return first, *more, targets


def _images(config: Any, names: Sequence[str], own: dict[str, Any], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Images (batch, channels, height, width), and the class of each (batch)."""
    size = getattr(config, "image_size", IMAGE_SIZE)
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randn(own["batch"], config.num_channels, height, width, generator=generator)
    return images, torch.randint(config.num_labels, (own["batch"],), generator=generator)


def _config(transformers: Any, name: str, changes: dict[str, Any]) -> Any:
    kinds = sorted(transformers.CONFIG_MAPPING.keys())
    kind = PUBLISHED.get(name, name)
    if kind not in kinds:
        similar = get_close_matches(kind, [*kinds, *PUBLISHED]) or ["gpt2", "bert"]
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


def _family(transformers: Any, config: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the class of models for a configuration, and the names of their inputs."""
    of_tokens, of_images = ("input_ids",), ("pixel_values",)
    families = (  # masked first: encoders like BERT are among the causal models too, as decoders of something else
        ("MaskedLM", "MASKED_LM", of_tokens),
        ("CausalLM", "CAUSAL_LM", of_tokens),
        ("Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", ("input_ids", "decoder_input_ids")),
        ("ImageClassification", "IMAGE_CLASSIFICATION", of_images),
    )
    for family, mapping, names in families:
        if type(config) in getattr(transformers, f"MODEL_FOR_{mapping}_MAPPING"):
            return getattr(transformers, f"AutoModelFor{family}"), names
    raise ValueError(f"{name} is no model of tokens or images that is known here; write a step of your own for it")
