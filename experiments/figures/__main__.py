"""Make every table and picture of README.md, docs/ and experiments/**/README.md anew, from experiments/results and from
the code alone.

python -m experiments.figures
"""

from __future__ import annotations

import argparse

from experiments.figures import architecture
from experiments.figures.catalogue import TABLES
from experiments.figures.documents import ROOT, documents, fill


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path in documents():
        before, after = path.read_text(), fill(path.read_text(), TABLES)
        path.write_text(after)
        print(f"{path.relative_to(ROOT)}: {'as it was' if before == after else 'written'}")
    architecture.PICTURE.write_text(architecture.picture())
    try:
        from experiments.figures.pictures import PICTURES, draw
    except ModuleNotFoundError as error:
        raise SystemExit("the pictures need matplotlib: python -m pip install -e '.[dev]'") from error
    for name in PICTURES:
        draw(name, ROOT / name)
        print(f"{name}: drawn")


if __name__ == "__main__":
    main()
