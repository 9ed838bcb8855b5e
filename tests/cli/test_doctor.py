"""`gst doctor` on this machine, and on one where things are missing."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import gst
from gst.cli import doctor, main
from gst.cli.doctor import Finding, findings


def named(what: str) -> Finding:
    (found,) = [each for each in findings() if each.what == what]
    return found


def test_this_machine_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", str(tmp_path / "doctor.json")]) == 0
    found = json.loads((tmp_path / "doctor.json").read_text())["findings"]
    assert {each["what"] for each in found} >= {"python", "packages", "metis", "compiler", "devices", "wandb"}
    assert all(each["state"] != "problem" and (each["state"] == "well" or each["advice"]) for each in found)
    assert "0 problems" in capsys.readouterr().out


def test_a_missing_compiler_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert main(["doctor"]) == 1
    assert "apt install g++" in capsys.readouterr().out


def test_packages_in_other_versions_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["torch>=99", "no-such-package>=1", "no-such-extra>=1; extra == 'dev'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: required)
    found = named("packages")
    assert found.state == "problem" and "torch>=99 is wanted" in found.found and "no-such-package>=1 is" in found.found
    assert "no-such-extra" not in found.found


@pytest.mark.parametrize(
    ("variable", "value", "what", "advice"),
    [
        ("OMP_WAIT_POLICY", "PASSIVE", "threads", "unset OMP_WAIT_POLICY"),
        ("OMP_PROC_BIND", "true", "threads", "unset these"),
        ("WANDB_MODE", "offline", "wandb", ""),
        ("WANDB_MODE", "online", "wandb", ""),
    ],
)
def test_the_environment_is_looked_at(
    variable: str, value: str, what: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    found = named(what)
    assert f"{variable}={value}" in found.found and found.advice.startswith(advice)
    assert (found.state == "note") == bool(advice)


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    found = named("cache")
    assert found.state == "problem" and "XDG_CACHE_HOME" in found.advice


def test_keys_of_wandb_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert named("wandb").found == "logged in"


def test_files_that_are_not_installed_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    assert gst.__version__ == "0+not.installed"
    assert main(["devices", "--json", str(tmp_path / "devices.json")]) == 0
    assert "is not installed" in named("packages").found
