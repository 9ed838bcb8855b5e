"""Results in short: the one table of README.md, seven rows with the command that makes each anew."""

from __future__ import annotations

from experiments.figures import gpu, placement
from experiments.figures.documents import result, table


def results_in_short() -> str:
    """Return seven rows: the claim, its figures, and the command."""
    memory, full, ranks = result("memory"), result("against_full"), result("tpugraphs_alexnet")["labels"]["all"]
    theirs, ours = result("published_step")["step_median"], result("step")["variants"]["shared bf16"]["step_ms"]
    fused, compiled = placement.over_pytorch()
    mib = f"{full['gst_peak_mib']:.0f} / {full['full_peak_mib']:,.0f} MiB"
    gpt, inception = gpu.gains()
    found, low, high, searches = result("worlds")["over_none"]["eight"]["fitted at 50"]
    rows = [
        ["memory of training, 10<sup>4</sup> to 10<sup>7</sup> nodes",
         f"{min(memory['train_peak_mib']):.0f} to {max(memory['train_peak_mib']):.0f} MiB", "`bench memory`"],
        ["tau of segments / of whole graphs, 100,000 nodes",
         f"{full['gst_tau']:.2f} / {full['full_tau']:.2f}, in {mib}", "`bench step --against full`"],
        ["training step, published code / ours", f"{1e3 * theirs:,.0f} / {ours:,.0f} ms", "`bench step`"],
        ["tau of a cost model on AlexNet (ridge regression)", f"{ranks['tau_mean']:.2f} ({ranks['ridge_tau']:.2f})",
         "`reproductions.tpugraphs.alexnet`"],
        ["plans with fusion over plain PyTorch / `torch.compile`", f"{fused:.2f}x / {compiled:.2f}x",
         "`bench placement`"],
        ["runtime of plans found with 50 measurements on simulated machines unlike their profile, costs fitted / not",
         f"{found:.2f} ({low:.2f} to {high:.2f}), {int(searches)} searches", "`worlds.study`"],
        ["four streams over one CUDA graph of the step: gpt, inception", f"{gpt:.2f}x, {inception:.2f}x",
         "`bench gpu`"],
    ]  # fmt: skip
    return table(["", "result", "`python -m experiments.`"], rows)


TABLES = {"results in short": results_in_short}
