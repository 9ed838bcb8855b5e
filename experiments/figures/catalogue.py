"""All tables and all numbers of the documents."""

from experiments.figures import (
    architecture,
    commands,
    cost_models,
    gpu,
    method,
    placement,
    public_names,
    published,
    reproductions,
    short,
    worlds,
)

SOURCES = (method, cost_models, placement, published, gpu, worlds)
PAGES = (short, reproductions, architecture, commands, public_names)
TABLES = {name: build for module in (*SOURCES, *PAGES) for name, build in module.TABLES.items()}
NUMBERS = [number for module in SOURCES for number in module.NUMBERS]
