"""Make every table, number and picture of README.md, docs/ and experiments/**/README.md anew, from
experiments/results and from the code alone.

python -m experiments.figures
"""

from __future__ import annotations

import argparse

from experiments.figures import architecture, overview
from experiments.figures.catalogue import NUMBERS, TABLES
from experiments.figures.documents import ROOT, documents, up_to_date


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path in documents():
        before, after = path.read_text(), up_to_date(path, TABLES, NUMBERS)
        path.write_text(after)
        print(f"{path.relative_to(ROOT)}: {'as it was' if before == after else 'written'}")
    for each in (architecture, overview):
        each.PICTURE.write_text(each.picture())
        print(f"{each.PICTURE.relative_to(ROOT)}: drawn")
    try:
        from experiments.figures.pictures import PICTURES, draw
    except ModuleNotFoundError as error:
        raise SystemExit("the pictures need matplotlib: python -m pip install -e '.[dev]'") from error
    for name in PICTURES:
        draw(name, ROOT / name)
        print(f"{name}: drawn")


if __name__ == "__main__":
    main()
