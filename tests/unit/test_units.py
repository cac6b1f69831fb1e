"""The systemd units: spelt right, and in no cycle with the units of a GPU host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
UNITS = REPO / "systemd"
SCRIPTS = UNITS / "scripts"

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)

# What runs on such hosts, with the orders of the published units.
STAND_INS = {
    "nvidia-persistenced.service": "After=syslog.target",
    "nvidia-vgpud.service": "",
    "nvidia-vgpu-mgr.service": "After=nvidia-vgpud.service",
    "nvidia-fabricmanager.service": "After=network-online.target\nRequires=network-online.target",
    "nvidia-dcgm.service": "Wants=nvidia-persistenced.service\nAfter=nvidia-fabricmanager.service",
    "nvidia-gpu-reset.target": "",
    "containerd.service": "After=network.target local-fs.target",
    "kubelet.service": "Wants=network-online.target\nAfter=containerd.service",
    "k3s.service": "Wants=network-online.target\nAfter=network-online.target",
    "k3s-agent.service": "Wants=network-online.target\nAfter=network-online.target",
    "rke2-server.service": "Wants=network-online.target\nAfter=network-online.target",
    "rke2-agent.service": "Wants=network-online.target\nAfter=network-online.target",
    "libvirtd.service": "After=network.target local-fs.target remote-fs.target",
    "virtqemud.service": "After=network.target local-fs.target remote-fs.target",
    "pve-guests.service": "After=network-online.target\nWants=network-online.target",
}

CONSUMERS = (
    *("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent"),
    *("libvirtd", "virtqemud", "pve-guests"),
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Our units with every consumer's drop-in, beside stand-ins; commands that exist."""
    for kind in ("service", "target", "path", "timer"):
        for path in UNITS.glob(f"*.{kind}"):
            shutil.copy(path, tmp_path)
    shutil.copytree(UNITS / "gpu-bootstate.service.d", tmp_path / "gpu-bootstate.service.d")
    for name, lines in STAND_INS.items():
        text = f"[Unit]\nDescription=stand-in\n{lines}\n"
        if name.endswith(".service"):
            text += "[Service]\nType=oneshot\nExecStart=/bin/true\n"
        (tmp_path / name).write_text(text + "[Install]\nWantedBy=multi-user.target\n", "utf-8")
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    for path in [*tmp_path.glob("*.service"), *tmp_path.glob("*.target"), *tmp_path.glob("*.path")]:
        (wants / path.name).symlink_to(path)
    for name in CONSUMERS:
        folder = tmp_path / f"{name}.service.d"
        folder.mkdir()
        shutil.copy(UNITS / "drop-ins" / "wait-for-gate.conf", folder)
    for path in [*tmp_path.glob("*.*"), *tmp_path.glob("*.d/*")]:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = text.replace("/usr/lib/gpu-bootstate/", f"{SCRIPTS}/")
            text = text.replace("/usr/bin/gpu-bootstate", "/bin/true")
            path.write_text(text.replace("Documentation=man:gpu-bootstate(8)\n", ""), "utf-8")
    return tmp_path


def verify(units: Path, *names: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["systemd-analyze", "verify", *names],  # noqa: S607
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:", "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    # What the machine's own units are complained of is none of our business.
    return "\n".join(line for line in lines if str(units) in line or "gpu-boot" in line)


@pytest.mark.parametrize("fabric_manager_first", [True, False])
def test_units_are_spelt_right_and_form_no_cycle(
    units: Path, *, fabric_manager_first: bool
) -> None:
    if not fabric_manager_first:
        drop_in = UNITS / "drop-ins" / "50-fabric-manager.conf"
        shutil.copy(drop_in, units / "gpu-bootstate.service.d")
    names = ["gpu-bootstate.service", "gpu-bootstate-regate.path"]
    for watcher in ("publish", "fleet"):
        names += [f"gpu-bootstate-{watcher}.{kind}" for kind in ("path", "timer")]
    ours = [str(units / name) for name in names]
    assert verify(units, *ours, "multi-user.target") == ""


def test_a_cycle_and_a_misspelt_key_would_be_noticed(units: Path) -> None:
    path = units / "gpu-bootstate.service"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("[Service]", "After=kubelet.service\n[Service]\nTipe=x"), "utf-8")
    said = verify(units, str(path), "multi-user.target")
    assert "Tipe" in said
    assert "cycle" in said


@pytest.mark.parametrize(
    ("unit", "limit"),
    [
        ("gpu-bootstate", 3.3),
        ("gpu-bootstate-regate", 2.7),
        ("gpu-bootstate-publish", 2.0),
        ("gpu-bootstate-fleet", 3.3),
    ],
)
def test_exposure_is_as_the_readme_says(unit: str, limit: float) -> None:
    done = subprocess.run(  # noqa: S603
        ["systemd-analyze", "security", "--offline=yes", str(UNITS / f"{unit}.service")],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= limit


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.iterdir()))
def test_scripts_are_plain_shell(script: str) -> None:
    assert os.access(SCRIPTS / script, os.X_OK)
    subprocess.run(["sh", "-n", str(SCRIPTS / script)], check=True)  # noqa: S603, S607


@pytest.mark.parametrize("name", ["drop-ins/wait-for-gate.conf", "gpu-bootstate-ready.target"])
def test_who_follows_the_gate_neither_requires_nor_starts_us(name: str) -> None:
    text = (UNITS / name).read_text(encoding="utf-8")
    assert not re.search(r"^(Wants|Requires|BindsTo|Requisite|PartOf|Upholds)=", text, re.MULTILINE)


def test_consumers_wait_for_us() -> None:
    text = (UNITS / "drop-ins" / "wait-for-gate.conf").read_text(encoding="utf-8")
    assert "\nAfter=gpu-bootstate.service gpu-bootstate-ready.target\n" in text
    assert "\nExecStartPre=/usr/lib/gpu-bootstate/gate-is-open\n" in text


def test_no_target_waits_for_the_api_server() -> None:
    text = (UNITS / "gpu-bootstate-publish.service").read_text(encoding="utf-8")
    assert "[Install]" not in text
    assert not re.search(r"^(Wants|Requires|Before)=", text, re.MULTILINE)
    # The start of a oneshot is a job until it ends, and systemd's boot is over when no job is left.
    assert "Type=exec\n" in text
