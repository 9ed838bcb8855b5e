"""A dataset laid out as HLSyn, of one small kernel that can be worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

SOURCE = """
#pragma ACCEL kernel
void kernel_rows(double a[8][4], double s[8])
{
  int i;
  int j;
#pragma ACCEL PIPELINE auto{__PIPE__L0}
#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}
  for (i = 0; i < 8; i++) {
    s[i] = 0.0;
#pragma ACCEL PARALLEL reduction=s FACTOR=auto{__PARA__L1}
    for (j = 0; j < 4; j++) {
      s[i] += a[i][j];
    }
  }
}
"""

NODES = (
    ("[external]", 0, ""), ("load", 0, "%0 = load"), ("fadd", 0, "%1 = fadd"), ("double", 1, "var"),
    ("PIPELINE", 3, "#pragma ACCEL PIPELINE auto{__PIPE__L0}"),
    ("PARALLEL", 3, "#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}"),
    ("PARALLEL", 3, "#pragma ACCEL PARALLEL reduction=s FACTOR=auto{__PARA__L1}"),
)  # fmt: skip
EDGES = ((0, 1, 2, 0), (1, 2, 1, 1), (3, 2, 1, 0), (4, 1, 3, 0), (5, 1, 3, 1), (6, 2, 3, 0))  # with flow and position


def gexf() -> str:
    """The program graph."""

    def values(pairs: dict[int, object]) -> str:
        entries = "".join(f'<attvalue for="{key}" value="{value}" />' for key, value in pairs.items())
        return f"<attvalues>{entries}</attvalues>"

    nodes = "".join(
        f'<node id="{number}" label="{number}">{values({0: number // 3, 1: 0, 2: text, 3: kind, 4: full})}</node>'
        for number, (text, kind, full) in enumerate(NODES)
    )
    edges = "".join(
        f'<edge source="{source}" target="{target}">{values({5: flow, 6: position})}</edge>'
        for source, target, flow, position in EDGES
    )
    return f"""<?xml version='1.0' encoding='utf-8'?>
<gexf version="1.2" xmlns="http://www.gexf.net/1.2draft"><graph defaultedgetype="directed">
<attributes class="edge"><attribute id="5" title="flow" type="long" /><attribute id="6" title="position" type="long" />
</attributes><attributes class="node"><attribute id="0" title="block" type="long" />
<attribute id="1" title="function" type="long" /><attribute id="2" title="text" type="string" />
<attribute id="3" title="type" type="long" /><attribute id="4" title="full_text" type="string" /></attributes>
<nodes>{nodes}</nodes><edges>{edges}</edges></graph></gexf>"""


def design(outer: int, inner: int, mode: str, cycles: float, valid: bool = True) -> dict:
    """A design and its outcome."""
    usage = {f"util-{name}": share for name, share in (("BRAM", 0.0), ("DSP", 0.1), ("LUT", 0.2), ("FF", 0.3))}
    point = {"__PARA__L0": outer, "__PARA__L1": inner, "__PIPE__L0": mode}
    return {"point": point, "perf": cycles, "valid": valid, "res_util": usage if cycles else {}}


def designs() -> dict[str, dict]:
    """Designs of which some are alike, one was refused, and one failed."""
    every = [
        design(outer, inner, mode, 4000.0 / outer / (1.5 if inner > 1 else 1) + (200 if mode == "flatten" else 0))
        for outer in (1, 2, 4, 8)
        for inner in (1, 2, 4)
        for mode in ("off", "", "flatten")
    ]
    every += [design(8, 4, "off", 0.0), design(8, 2, "off", 9.0, valid=False)]
    return {str(number): each for number, each in enumerate(every)}


def write(folder: Path, tools: tuple[str, ...] = ("v18", "v20")) -> Path:
    """The dataset below `folder`."""
    for part in ("graphs", "sources", *(f"designs/{tool}" for tool in tools)):
        (folder / "data" / part).mkdir(parents=True, exist_ok=True)
    (folder / "data" / "graphs" / "rows_processed_result.gexf").write_text(gexf())
    (folder / "data" / "sources" / "rows_kernel.c").write_text(SOURCE)
    for tool in tools:
        (folder / "data" / "designs" / tool / "rows.json").write_text(json.dumps(designs()))
    return folder
