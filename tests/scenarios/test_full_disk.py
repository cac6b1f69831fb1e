"""A /var or /run that is full or read-only, as real mounts in a namespace of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.test_commands import REPO
from tests.scenarios.test_own_files import CONFIG, A

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts, so it needs root"
)

FULL = "mount -t tmpfs -o size=8k none $1; head -c 100000 /dev/zero >$1/filler 2>/dev/null || :"
READ_ONLY = "mount -t tmpfs -o ro none $1"


def apply_with(
    directory: Path, place: str, mount: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """`apply` on a new node, below whose root a directory is mounted like that."""
    config = directory / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    root = directory / "sim/root"
    (root / place).mkdir(parents=True)
    command = [sys.executable, "-m", "gpu_bootstate", "--simulate", "hgx-h200-8"]
    command += ["--sim-dir", str(directory / "sim"), "--config", str(config)]
    # After the run, what is in there is copied out of the namespace.
    run = f'{mount}; shift; "$@" apply --format json; code=$?'
    script = f"{run}; cp -r {root}/{place} {directory}/seen; exit $code"
    done = subprocess.run(  # noqa: S603
        ["unshare", "--mount", "sh", "-c", script, "-", str(root / place), *command],  # noqa: S607
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, root


@pytest.mark.parametrize("mount", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_var_costs_the_memory_of_the_run_and_not_the_node(tmp_path: Path, mount: str) -> None:
    done, root = apply_with(tmp_path, "var/lib/gpu-bootstate", mount)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["condition"] == "converged"
    assert "last-run.json is not written" in done.stderr
    assert (root / "run/gpu-bootstate/ready").exists()
    assert not (tmp_path / "seen/last-run.json").exists()


@pytest.mark.parametrize("mount", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_run_keeps_the_gate_shut_and_says_so(tmp_path: Path, mount: str) -> None:
    done, _ = apply_with(tmp_path, "run/gpu-bootstate", mount)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "/run/gpu-bootstate" in done.stderr
    assert not (tmp_path / "seen/ready").exists()
    assert not (tmp_path / f"seen/gpus/{A}.json").exists()
