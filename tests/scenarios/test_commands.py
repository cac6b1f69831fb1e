"""The commands as a person runs them: separate processes on one simulated node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

REPO = Path(__file__).parents[2]
EXAMPLE = REPO / "config" / "config.yaml"
SCHEMA = json.loads((REPO / "docs" / "status-schema.json").read_text(encoding="utf-8"))
A = "0000:17:00.0"


class Shell:
    """`gpu-bootstate --simulate BOARD` with a directory and a configuration of its own."""

    def __init__(self, directory: Path, board: str, config: Path = EXAMPLE) -> None:
        self.directory = directory
        self.words = [sys.executable, "-m", "gpu_bootstate", "--simulate", board]
        self.words += ["--sim-dir", str(directory), "--config", str(config)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603  # ourselves
            [*self.words, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPO), "NO_COLOR": "1"},
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate()
        assert "Traceback" not in err, err
        assert process.returncode == code, (process.returncode, out, err)
        return out

    def data(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        value = json.loads(self.run(*arguments, "--format", "json", code=code))
        assert isinstance(value, dict)
        return value

    @property
    def trace(self) -> list[dict[str, Any]]:
        path = self.directory / "trace.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def ready(self) -> bool:
        return (self.directory / "root/run/gpu-bootstate/ready").exists()


@pytest.fixture
def hgx(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "sim", "hgx-h200-8")


def test_bring_up_nothing_to_do_and_reboot(hgx: Shell) -> None:
    assert hgx.data("plan")["changes"] is True
    hgx.run("plan", "--exit-code", code=2)
    assert hgx.trace == []
    first = hgx.data("apply")
    jsonschema.validate(first, SCHEMA)
    assert (first["condition"], first["gate"]["open"], hgx.ready) == ("converged", True, True)
    count = len(hgx.trace)
    assert count > 0
    hgx.run("plan", "--exit-code")
    assert hgx.data("apply")["condition"] == "converged"
    assert len(hgx.trace) == count
    hgx.run("simulate", "reboot")
    assert not hgx.ready
    assert hgx.data("status", code=1)["progress"] == "never-ran"
    assert hgx.data("apply")["condition"] == "converged"
    assert hgx.data("status")["live"]["plan"]["changes"] is False


def test_a_dry_run_is_the_plan_and_changes_nothing(hgx: Shell) -> None:
    assert hgx.run("apply", "--dry-run") == hgx.run("plan")
    assert hgx.trace == []
    assert not hgx.ready


def test_a_driver_reload_is_drift_and_status_tells(hgx: Shell) -> None:
    hgx.run("apply")
    hgx.run("simulate", "reload-driver")
    status = hgx.data("status", code=2)
    assert (status["condition"], status["live"]["condition"]) == ("converged", "degraded")
    assert "drifted" in hgx.run("status", code=2)
    hgx.run("gate", code=1)
    assert not hgx.ready
    hgx.run("apply")
    assert hgx.ready


def test_the_gate_command_puts_a_file_back_and_calls_nothing(hgx: Shell) -> None:
    hgx.run("apply")
    count = len(hgx.trace)
    (hgx.directory / "root/run/gpu-bootstate/ready").unlink()
    hgx.run("gate")
    assert hgx.ready
    assert len(hgx.trace) == count


@pytest.mark.parametrize("when", ["kill-before", "kill-after"])
@pytest.mark.parametrize("verb", ["sriov_manage nth=3", "set_vgpu_type nth=9"])
def test_a_run_killed_by_sigkill_is_told_and_continued(hgx: Shell, verb: str, when: str) -> None:
    hgx.run("simulate", "fault", *verb.split(), when)
    process = hgx.start("apply")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not hgx.ready
    assert hgx.data("status", "--wait", code=1)["progress"] == "died"
    hgx.run("simulate", "fault", "--clear")
    assert hgx.data("apply")["condition"] == "converged"
    assert hgx.ready


def test_a_second_run_is_refused_while_one_works_or_waits_for_it(hgx: Shell) -> None:
    hgx.run("simulate", "new", "--pace", "0.05")
    first = hgx.start("apply")
    while not (hgx.directory / "root/run/gpu-bootstate/status.json").exists():
        time.sleep(0.02)
    hgx.run("apply", code=3)
    running = hgx.data("status", code=1)
    assert (running["progress"], running["live"]) == ("running", None)
    waited = hgx.data("status", "--wait")
    assert waited["condition"] == "converged"
    assert first.wait() == 0
    first.communicate()
    count = len(hgx.trace)
    assert hgx.data("apply", "--wait-lock", "30")["condition"] == "converged"
    assert len(hgx.trace) == count


def test_many_at_once_end_in_one_consistent_state(hgx: Shell) -> None:
    runs = [hgx.start("apply", "--wait-lock", "60") for _ in range(5)]
    assert [process.wait() for process in runs] == [0] * 5
    for process in runs:
        process.communicate()
    tool = [call for call in hgx.trace if call["verb"] == "sriov_manage"]
    assert len(tool) == 8
    assert hgx.ready


def test_sigterm_ends_the_run_and_says_how_far_it_got(hgx: Shell) -> None:
    hgx.run("simulate", "new", "--pace", "0.1")
    process = hgx.start("apply", "--format", "json")
    while not any(call["verb"] == "sriov_manage" for call in hgx.trace):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert "Traceback" not in err, err
    assert process.returncode in (1, 2)
    result = json.loads(out)
    reasons = {gpu["reason"] for gpu in result["gpus"]}
    assert "interrupted" in reasons
    assert not hgx.ready
    assert len(hgx.trace) < 80
    hgx.run("apply")


def test_a_bad_file_is_exit_4_with_every_problem_and_its_place(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "version: v1\nprofilse: {}\ngpus:\n  - match: {pci: nonsense}\n    profile: nope\n"
    )
    shell = Shell(tmp_path / "sim", "hgx-h200-8", bad)
    process = shell.start("apply")
    _, err = process.communicate()
    assert process.returncode == 4
    lines = [line for line in err.splitlines() if line.startswith(str(bad))]
    assert len(lines) >= 3
    assert "did you mean profiles?" in lines[0]
    status = shell.data("status", code=4)
    assert status["condition"] == "bad-config"
    assert shell.trace == []


def test_what_export_writes_plans_to_nothing(hgx: Shell, tmp_path: Path) -> None:
    hgx.run("apply")
    exported = tmp_path / "exported.yaml"
    exported.write_text(hgx.run("export"))
    Shell(hgx.directory, "hgx-h200-8", exported).run("plan", "--exit-code")


@pytest.mark.parametrize(
    ("example", "board"),
    [
        ("back-to-bare", "hgx-h200-8"),
        ("mig-backed", "hgx-h200-8"),
        ("mixed-layouts", "hgx-h200-8"),
        ("mixed-size", "hgx-h200-8"),
        ("passthrough", "hgx-h200-8"),
        ("time-sliced-l40s", "l40s-4"),
        ("whole-card", "hgx-h200-8"),
    ],
)
def test_every_example_passes_check_converges_and_is_then_left_alone(
    example: str, board: str, tmp_path: Path
) -> None:
    file = REPO / "config" / "examples" / f"{example}.yaml"
    shell = Shell(tmp_path / "sim", board, file)
    shell.run("check", "--board", board)
    assert shell.trace == []
    assert shell.data("apply")["condition"] == "converged"
    count = len(shell.trace)
    assert shell.data("apply")["condition"] == "converged"
    assert len(shell.trace) == count
    exported = tmp_path / "exported.yaml"
    exported.write_text(shell.run("export"))
    Shell(shell.directory, board, exported).run("plan", "--exit-code")


def test_every_example_is_tried_above() -> None:
    tried = {
        parameters[0]
        for mark in test_every_example_passes_check_converges_and_is_then_left_alone.pytestmark  # type: ignore[attr-defined]  # set by the decorator
        for parameters in mark.args[1]
    }
    assert {path.stem for path in (REPO / "config" / "examples").glob("*.yaml")} == tried


def test_the_commented_example_passes_check_without_a_gpu() -> None:
    done = subprocess.run(  # noqa: S603  # ourselves
        [sys.executable, "-m", "gpu_bootstate", "check", "--board", "hgx-h200-8", str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stderr
    assert "mig-seven: 1g.18gb at 0" in done.stdout


def test_the_boot_path_loads_neither_simulator_nor_catalog_nor_pyudev(tmp_path: Path) -> None:
    script = (
        "import sys, gpu_bootstate.cli.apply, gpu_bootstate.hardware.real;"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyudev', 'jsonschema')"
        " or m.startswith(('gpu_bootstate.simulator', 'gpu_bootstate.catalog'))])"
    )
    done = subprocess.run(  # noqa: S603  # ourselves
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPO
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("damage", ["{", '{"board": 1}', "[]", "\\x00"])
def test_a_damaged_node_and_an_unknown_board_are_told_in_a_sentence(
    hgx: Shell, damage: str
) -> None:
    hgx.run("plan")
    (hgx.directory / "node.json").write_text(damage)
    hgx.run("status", code=1)
    hgx.run("simulate", "new")
    hgx.run("plan")
    Shell(hgx.directory / "other", "hgx-h200-9").run("plan", code=2)


def test_a_host_that_does_not_answer_is_said_in_a_sentence(hgx: Shell) -> None:
    hgx.run("apply")
    hgx.run("simulate", "fault", "pfs", "io:EIO")
    for command in ("plan", "export", "check", "status", "gate", "apply"):
        assert hgx.ready or command == "apply"
        process = hgx.start(command)
        out, err = process.communicate()
        assert process.returncode == 1, command
        assert "does not answer" in out + err, command
        assert "Traceback" not in err, command
    assert not hgx.ready
    hgx.run("simulate", "fault", "--clear")
    hgx.run("apply")
    assert hgx.ready
