"""All tables of the documents."""

from experiments.figures import architecture, commands, measured, public_names, published, worlds

TABLES = {
    name: build
    for module in (measured, published, worlds, architecture, commands, public_names)
    for name, build in module.TABLES.items()
}
