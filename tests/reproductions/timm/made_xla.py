"""Programs of JAX as StableHLO, HLO and compiled HLO, and XLA's own counts of their operations.

python -m made_xla DIR, from tests/reproductions/timm, writes the files of tests/fixtures/xla anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FORMS = ("mlir", "lowered.txt", "compiled.txt")


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """A training step of convolutions, attention in bf16, and a loop, each with its arguments."""
    import jax
    import jax.numpy as jnp

    def zeros(*shape: int, dtype: Any = np.float32) -> Any:
        return np.zeros(shape, dtype)

    def convolution(x: Any, weight: Any, stride: int, groups: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    def convnet(p: Any, x: Any, y: Any) -> Any:
        hidden = convolution(jax.nn.relu(convolution(x, p["a"], 2)), p["d"], 1, 16)
        hidden = jnp.tanh(hidden + p["b"]).mean((1, 2))
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(hidden @ p["w"]) * y, -1))

    def attention(p: Any, tokens: Any) -> Any:
        x = p["e"][tokens]
        q, k, v = (jnp.einsum("bld,dhe->bhle", x, p[name]) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bhle,bhme->bhlm", q, k) / 4, -1)
        mixed = jnp.einsum("bhlm,bhme->blhe", scores, v).reshape(x.shape)
        return jax.nn.gelu(mixed @ p["o"]) @ p["f"]

    def loop(w: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 7, lambda _, state: jnp.tanh(state @ w), x)

    weights = {"a": zeros(3, 3, 3, 16), "d": zeros(3, 3, 1, 16), "b": zeros(16), "w": zeros(16, 10)}
    half = {name: zeros(64, 4, 16, dtype=jnp.bfloat16) for name in "qkv"}
    half |= {name: zeros(*shape, dtype=jnp.bfloat16) for name, shape in (("e", (50, 64)), ("o", (64, 256)))}
    half |= {"f": zeros(256, 64, dtype=jnp.bfloat16)}
    return {
        "convnet_step": (jax.value_and_grad(convnet), (weights, zeros(8, 32, 32, 3), zeros(8, 10))),
        "attention": (attention, (half, zeros(2, 32, dtype=np.int32))),
        "loop": (loop, (zeros(32, 32), zeros(8, 32))),
    }


def write(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """All programs in all forms; returns XLA's counts, lowered and compiled."""
    import jax

    counts = {}
    for name, (function, arguments) in programs().items():
        lowered = jax.jit(function).lower(*arguments)
        compiled = lowered.compile()
        texts = (lowered.as_text(), lowered.as_text(dialect="hlo"), compiled.as_text())
        for form, text in zip(FORMS, texts, strict=True):
            (folder / f"{name}.{form}").write_text(text)
        counts[name] = {
            form: {key: each.cost_analysis().get(key, 0.0) for key in ("flops", "transcendentals")}
            for form, each in (("lowered", lowered), ("compiled", compiled))
        }
    return counts


if __name__ == "__main__":
    counts = write(Path(sys.argv[1]))
    (Path(sys.argv[1]) / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
