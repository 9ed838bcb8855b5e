"""How much is said: --quiet, --verbose, --version and completion, of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gst.cli import main
from gst.util.progress import Bars, LogLines, notice, saying, verbosity


def said(capsys: pytest.CaptureFixture[str], terminal: bool = True) -> str:
    sys.stderr.isatty = lambda: terminal  # type: ignore[method-assign]
    LogLines._printed = time.monotonic()  # as if a bar of an earlier test had just printed a line
    with Bars() as bars:
        bars.show("work", 1, 2)
    notice("something")
    return capsys.readouterr().err


def test_bars_go_stay_or_never_come(capsys: pytest.CaptureFixture[str]) -> None:
    usual = said(capsys)
    assert "work" in usual and "gst: something" in usual and usual.rpartition("\r")[2].strip() == "gst: something"
    with saying("quiet"):
        assert said(capsys) == "" and os.environ["GST_VERBOSITY"] == "quiet"
    with saying("verbose"):
        assert re.search(r"work: .*\n", said(capsys))
        assert re.match(r"work: .* 1/2 .*\ngst: something\n", said(capsys, terminal=False))
    assert said(capsys, terminal=False) == "gst: something\n"
    assert verbosity() == "normal"


def test_quiet_commands_print_their_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "synthetic:400", "--max-nodes", "100", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert "segments" in out and err == ""
    assert main(["--quiet", "prepare", "no_such_file.npz"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("gst: error: ") and err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_what_completes_commands_is_understood_by_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    assert all(name in script for name in ("place", "measure", "doctor", "--memory-limit"))
    if shell == "bash":
        tried = f'{script}\nCOMP_WORDS=(gst doc) COMP_CWORD=1; _shtab_gst; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", tried], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["doctor"], done.stderr


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert re.fullmatch(r"gst \d+\.\d+\S*\n", capsys.readouterr().out)
