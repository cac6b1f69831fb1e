"""`gate --hold` and `gate --close`: what somebody else does to the gate's files between two runs.

Field cases G1 to G3: a file that is deleted comes back only if it is still true.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.test_commands import Shell

A = "0000:17:00.0"
EXTRA = "run/nvidia/validations/vgpu-devices-ready"
CONFIG = f"""version: v1
gpus:
  - match: {{pci: "{A}"}}
    profile: {{vgpus: {{H200X-141C: 1}}}}
gate: {{files: [/{EXTRA}]}}
"""


class Held(Shell):
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        config = directory / "config.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        super().__init__(directory / "sim", "hgx-h200-8", config)
        self.root = directory / "sim/root"
        self.run_dir = self.root / "run/gpu-bootstate"
        self.files = [self.run_dir / "ready", self.run_dir / f"gpus/{A}.json", self.root / EXTRA]

    @property
    def there(self) -> list[bool]:
        return [path.exists() for path in self.files]

    def hold(self) -> str:
        return self.run("gate", "--hold")


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path / "held")


DISTURBANCES: list[Callable[[Held], object]] = [
    lambda held: held.files[0].unlink(),
    lambda held: held.files[1].unlink(),
    lambda held: held.files[2].unlink(),
    lambda held: held.files[2].write_text("no", encoding="utf-8"),
    lambda held: shutil.rmtree(held.root / "run/nvidia"),
    lambda held: shutil.rmtree(held.run_dir),
]


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_G1_what_is_deleted_comes_back_without_a_call(
    held: Held, disturb: Callable[[Held], object]
) -> None:
    held.run("apply")
    before = held.files[2].read_text(encoding="utf-8")
    count = len(held.trace)
    disturb(held)
    assert held.hold() == "the gate is open\n"
    assert held.there == [True, True, True]
    assert held.files[2].read_text(encoding="utf-8") == before
    assert len(held.trace) == count


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_G2_it_is_withdrawn_where_it_is_not_true_any_more(
    held: Held, disturb: Callable[[Held], object]
) -> None:
    held.run("apply")
    held.run("simulate", "reload-driver")
    disturb(held)
    assert held.hold() == "the gate is closed\n"
    assert held.there == [False, False, False]


def test_nobody_disturbed_it_so_nobody_looks_at_a_gpu(held: Held) -> None:
    held.run("apply")
    stamps = [path.stat().st_mtime_ns for path in held.files]
    held.run("simulate", "fault", "facts", "hang")
    assert held.hold() == "the gate is open\n"
    assert [path.stat().st_mtime_ns for path in held.files] == stamps


def test_a_run_that_failed_is_not_put_right_behind_its_back(held: Held) -> None:
    held.run("simulate", "fault", "sriov_manage", A, "noop")
    held.run("apply", code=1)
    held.run("simulate", "fault", "--clear")
    assert held.hold() == "the gate is closed\n"
    assert held.there == [False, False, False]


def test_a_gate_that_was_verified_after_a_failed_run_is_looked_at_once(held: Held) -> None:
    held.run("apply")
    record = json.loads((held.run_dir / "status.json").read_text(encoding="utf-8"))
    record["gate"]["open"] = False
    (held.run_dir / "status.json").write_text(json.dumps(record), encoding="utf-8")
    process = held.start("gate", "--hold")
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (out, process.returncode) == ("the gate is open\n", 0)
    assert err.count("looking at the GPUs afresh") == 1


def test_without_a_run_in_this_boot_a_gate_file_is_not_believed(held: Held) -> None:
    held.run_dir.mkdir(parents=True)
    record = {"boot_id": "of the boot before", "files": [f"/{EXTRA}"], "open": [A]}
    held.files[0].write_text(json.dumps(record), encoding="utf-8")
    assert held.hold() == "the gate is closed\n"
    assert held.there == [False, False, False]


def test_it_waits_for_a_run_that_is_at_work(held: Held) -> None:
    held.run("apply")
    held.run("simulate", "reload-driver")
    held.run("simulate", "new", "--pace", "0.02")
    run = held.start("apply")
    while not (held.run_dir / "lock").exists() or not (held.run_dir / "status.json").exists():
        time.sleep(0.02)
    assert held.hold() == "the gate is open\n"
    assert run.wait() == 0
    run.communicate()


def test_close_takes_everything_away_even_with_a_broken_configuration(held: Held) -> None:
    held.run("apply")
    (held.directory.parent / "config.yaml").write_text("version: v9\n", encoding="utf-8")
    assert held.run("gate", "--close") == "the gate is closed\n"
    assert held.there == [False, False, False]


def test_close_and_hold_exclude_each_other(held: Held) -> None:
    held.run("gate", "--close", "--hold", code=2)


def test_a_simulated_node_can_live_on_the_files_of_another_root(held: Held, tmp_path: Path) -> None:
    held.run("simulate", "new", "--boot-id", "11111111-2222-3333-4444-555555555555")
    held.words += ["--root", str(tmp_path / "elsewhere")]
    held.run("apply")
    ready = json.loads((tmp_path / "elsewhere/run/gpu-bootstate/ready").read_text("utf-8"))
    assert ready["boot_id"] == "11111111-2222-3333-4444-555555555555"
    assert held.there == [False, False, False]


@pytest.mark.parametrize(
    ("unit", "state", "told"),
    [
        ("gpu-bootstate-regate.path", "active", False),
        ("gpu-bootstate-regate.path", "failed", True),
        ("gpu-bootstate-regate.path", "inactive", True),
        ("gpu-bootstate-regate.service", "failed", True),
        ("gpu-bootstate-regate.service", "inactive", False),
    ],
)
def test_the_death_of_the_guard_shows_in_status(
    held: Held, unit: str, state: str, *, told: bool
) -> None:
    held.run("apply")
    path = held.directory / "node.json"
    node = json.loads(path.read_text(encoding="utf-8"))
    node["units"][unit] = {"active_state": state}
    path.write_text(json.dumps(node), encoding="utf-8")
    assert (f"Nobody holds the gate's files: {unit}" in held.run("status")) == told
