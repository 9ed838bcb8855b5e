"""Output cones of circuits, as circuits of their own: more structures to learn from, which are labelled in a moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.reproductions.circuits.circuit import Circuit, write_aiger
from experiments.reproductions.circuits.files import CircuitFile, cache, circuit_files
from gst.util.progress import bar
from gst.util.writing import atomic_path

CONES = 10  # of each circuit
TRIES = 20  # draws for one cone of the wanted size


def random_cone(circuit: Circuit, least: int, most: int, generator: np.random.Generator) -> Circuit | None:
    """The cone of neighbouring outputs, drawn at random, with `least` to `most` ANDs; None if there is none among
    `TRIES` draws. The size aimed at is drawn log-uniformly."""
    for _ in range(TRIES):
        wanted = np.exp(generator.uniform(np.log(least), np.log(most)))
        start, width = int(generator.integers(len(circuit.outputs))), 1
        part = circuit.cone(np.array([start]))
        while part.num_ands < wanted and start + width < len(circuit.outputs):
            width = min(2 * width, len(circuit.outputs) - start)
            part = circuit.cone(np.arange(start, start + width))
        if least <= part.num_ands <= most:
            return part
    return None


def write_cones(
    files: list[CircuitFile], folder: Path, count: int, least: int = 150, most: int = 3_000, seed: int = 0
) -> list[CircuitFile]:
    """Write up to `count` cones of each circuit, smaller than it, as `NAME+NUMBER.aig` below `folder`."""
    written = []
    for file in bar(files, desc="cones"):
        circuit, distinct = file.read(), set[bytes]()
        generator = np.random.default_rng([seed, *file.design.encode()])
        for number in range(count):
            part = random_cone(circuit, least, most, generator)
            if part is None or part.num_ands >= 0.9 * circuit.num_ands or part.fanins.tobytes() in distinct:
                continue
            distinct.add(part.fanins.tobytes())
            cone = CircuitFile(f"{file.name}+{number}", folder / f"{file.name}+{number}.aig")
            with atomic_path(cone.path) as target:
                write_aiger(part, target)
            written.append(cone)
    return written


def labelled_files(data: Path) -> list[CircuitFile]:
    """Return the circuits of `data` and output cones of each, which are written to the cache."""
    files = circuit_files(data)
    return [*files, *write_cones(files, cache() / "cones", CONES)]
