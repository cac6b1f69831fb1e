"""What the commands said on a real H200, and that they say the same over the C library.

tests/fixtures/h200-guest was written by tests/device/read-only.sh on a machine with one H200 passed
through to a guest, driver 580.159.04; serials, UUIDs and the boot id are masked there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.host import Host

REPO = Path(__file__).parents[2]
FIXTURES = REPO / "tests/fixtures/h200-guest"
CONFIG = REPO / "tests/device/h200.yaml"


@pytest.fixture
def guest(tmp_path: Path) -> Host:
    host = Host(tmp_path, {"0000:00:06.0": "h200"}, vgpu_host=False)
    host.nvml("0000:00:06.0", "persistence", 1)
    return host


def _masked(text: str) -> str:
    text = re.sub(
        r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "GPU-00000000-0000-0000-0000-000000000000",
        text,
    )
    text = re.sub(r'("serial": )"[^"]*"', r'\1"0000000000000"', text)
    zeros = "00000000-0000-0000-0000-000000000000"
    return re.sub(r'("boot_id": )"[^"]*"', rf'\1"{zeros}"', text)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("status.json", ["status", "--format", "json"]),
        ("plan.txt", ["--config", str(CONFIG), "plan"]),
        ("status.txt", ["--config", str(CONFIG), "status"]),
        ("check.json", ["check", str(CONFIG), "--format", "json"]),
        ("export.yaml", ["export"]),
    ],
)
def test_the_real_driver_and_the_library_get_the_same_answer(
    guest: Host, name: str, command: list[str]
) -> None:
    done = guest.command(*command)
    assert done.stderr == ""
    said = _masked(done.stdout) + f"exit code: {done.returncode}\n"
    assert said == (FIXTURES / name).read_text(encoding="utf-8")
    assert guest.calls == []


def test_the_guest_is_told_that_it_is_no_vgpu_host_with_exit_code_5() -> None:
    text = (FIXTURES / "status.json").read_text(encoding="utf-8")
    body, _, code = text.rpartition("exit code: ")
    gpu = json.loads(body)["live"]["node"]["gpus"]["0000:00:06.0"]
    assert (gpu["vgpu_host"], gpu["name"], code.strip()) == (False, "NVIDIA H200", "5")
    assert "is not run by a vGPU host driver" in (FIXTURES / "plan.txt").read_text()
    placed = json.loads((FIXTURES / "check.json").read_text().rpartition("exit code")[0])
    assert [each["start"] for each in placed["gpus"][0]["mig"]] == list(range(7))
