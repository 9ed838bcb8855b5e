"""All tables and all numbers of the documents."""

from experiments.figures import architecture, cost_models, method, placement, public_names, published

TABLES = {
    **method.TABLES,
    **cost_models.TABLES,
    **placement.TABLES,
    **published.TABLES,
    **architecture.TABLES,
    **public_names.TABLES,
}
NUMBERS = [*method.NUMBERS, *cost_models.NUMBERS, *placement.NUMBERS, *published.NUMBERS]
