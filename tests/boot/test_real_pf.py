"""The real adapters on the kernel's own SR-IOV, inside the sandbox of the shipped unit.

QEMU's NVMe has a PF with up to eight VFs. Vendor and class are made NVIDIA's by bind mounts; the
rest is the kernel's: `sriov_numvfs`, the `virtfn` links, drivers, uevents, VFIO.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boot.machine import Completed, Machine, MachineError, OverlayEntry, Symlink
from tests.boot.node import US, Node, Shows

pytestmark = pytest.mark.boot

VFS = 8
_UNITS = "/etc/systemd/system"
DROP_IN = f"/run/systemd/system/{US}.d/99-probe.conf"

# host-interfaces.md 1.2: by way of pci-pf-stub, as PFs of one vendor and device id.
_SRIOV_MANAGE = """#!/bin/bash
set -eu
[[ $1 == -e || $1 == -d ]]
device=/sys/bus/pci/devices/$2 stub=/sys/bus/pci/drivers/pci-pf-stub
count=0; [[ $1 == -d ]] || count=$(<"$device/sriov_totalvfs")
modprobe pci-pf-stub
echo 0 >"$device/sriov_drivers_autoprobe"
echo "$2" >"$device/driver/unbind"
echo "1b36 0010" >$stub/new_id
[[ $(readlink -f "$device/driver") == "$stub" ]] || echo "$2" >$stub/bind
echo "$count" >"$device/sriov_numvfs"
echo "$2" >$stub/unbind
echo "1b36 0010" >$stub/remove_id
echo "$2" >/sys/bus/pci/drivers/nvme/bind
echo "VFs on $2: $count"
"""

# Before our unit: the two NVMe PFs get NVIDIA's vendor and a display class.
_DISGUISE = """#!/bin/sh
set -eu
echo 0x10de >/run/vendor
echo 0x030200 >/run/class
for device in /sys/bus/pci/drivers/nvme/0000:*; do
    mount --bind /run/vendor "$(readlink -f "$device")/vendor"
    mount --bind /run/class "$(readlink -f "$device")/class"
done
"""


def _devices() -> list[str]:
    found = ["-device", "intel-iommu"]
    for slot in (1, 2):
        found += ["-device", f"pcie-root-port,id=port{slot},chassis={slot},slot={slot}"]
        found += ["-device", f"nvme-subsys,id=subsys{slot}"]
        nvme = f"nvme,serial=pf{slot},subsys=subsys{slot},bus=port{slot},sriov_max_vfs={VFS}"
        found += ["-device", f"{nvme},sriov_vq_flexible={2 * VFS},sriov_vi_flexible={VFS}"]
    return found


@pytest.fixture(scope="module")
def host(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = (
        "version: v1\ngpus: [{match: {index: 0}, profile: {vgpus: {H200X-141C: 1}}}]\n"
        "policy: {manager-wait: 1s}\n"
    )
    overlay: dict[str, OverlayEntry] = {
        "/etc/gpu-bootstate/config.yaml": config,
        "/usr/lib/nvidia/sriov-manage": _SRIOV_MANAGE,
        "/usr/lib/boot-test/disguise": _DISGUISE,
        "/usr/lib/boot-test/probe.py": (Path(__file__).parent / "probe.py").read_text("utf-8"),
        f"{_UNITS}/disguise.service": (
            f"[Unit]\nBefore={US}\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"
            "ExecStart=/usr/lib/boot-test/disguise\n"
        ),
        f"{_UNITS}/multi-user.target.wants/disguise.service": Symlink("../disguise.service"),
    }
    work = tmp_path_factory.mktemp("host")
    with Machine(image, work, kernel_args=["intel_iommu=on"]) as machine:
        machine.boot(overlay, _devices())
        machine.wait_booted(300)
        yield Node(machine)


@pytest.fixture(scope="module")
def pfs(host: Node) -> list[str]:
    return host.check("cd /sys/bus/pci/drivers/nvme && ls -d 0000:*").split()


def probe(host: Node, job: str, pf: str) -> dict[str, Any]:
    """One run of the probe as the unit's main process, in its sandbox."""
    done = start_probe(host, job, pf)
    said = host.said(US)
    host.check(f"rm {DROP_IN}; systemctl stop {US}; systemctl daemon-reload")
    assert done.rc == 0, said
    found = json.loads([text for text in said if text.startswith("{")][-1])
    assert found["modprobe"] == 0
    assert isinstance(found, dict)
    return found


def start_probe(host: Node, job: str, pf: str) -> Completed:
    lines = "ExecCondition=\\nExecStartPost=\\nExecStart=\\n"
    lines += "ExecStart=/usr/bin/python3 -I /usr/lib/boot-test/probe.py\\n"
    host.check(
        f"mkdir -p $(dirname {DROP_IN}) /etc/boot-test; echo '{job} {pf}' >/etc/boot-test/probe; "
        f"printf '[Service]\\n{lines}' >{DROP_IN}; systemctl daemon-reload"
    )
    return host.run(f"systemctl restart {US}", 300)


def state(vfs: list[list[Any]]) -> dict[str, Any]:
    return {"driver": "nvme", "total": VFS, "on": len(vfs), "vfs": vfs}


def vf_links(host: Node, pf: str) -> list[list[Any]]:
    """From the kernel's links, by other means than ours."""
    command = f"cd /sys/bus/pci/devices/{pf}; for l in virtfn?; do readlink $l; done"
    return [[i, line.rpartition("/")[2]] for i, line in enumerate(host.check(command).split())]


def test_a_gpu_without_its_driver_is_a_failure_and_no_skip(host: Node, shows: Shows) -> None:
    """The shipped unit, nothing overridden, with the tool there and no module loaded."""
    assert (host.show(US, "ActiveState"), host.show(US, "ExecMainStatus")) == ("failed", "5")
    assert host.show(US, "StatusText").startswith("Unavailable: ")
    shows(f"GPU without driver: unit failed, says: {host.show(US, 'StatusText')}")


def test_vfs_are_enabled_counted_and_disabled(host: Node, pfs: list[str], shows: Shows) -> None:
    pf, other = pfs
    found = probe(host, "enable", pf)
    assert found["before"] == {pf: state([]), other: state([])}
    assert found["tool"] == {"exit_code": 0, "said": f"VFs on {pf}: {VFS}", "woken": True}
    links = vf_links(host, pf)
    assert len(links) == VFS
    assert found["after"] == {pf: state(links), other: state([])}
    shows(f"real PF: {VFS} VFs enabled, counted and awaited by the kernel's events, in the sandbox")

    found = probe(host, "disable", pf)
    assert found["before"][pf] == state(links)
    assert found["after"] == {pf: state([]), other: state([])}
    assert host.check(f"cat /sys/bus/pci/devices/{pf}/sriov_numvfs") == "0"
    shows("real PF: VFs disabled; the other PF of the model untouched, modprobe works")


def test_whoever_has_a_vf_open_is_named(host: Node, pfs: list[str], shows: Shows) -> None:
    pf = pfs[1]
    probe(host, "enable", pf)
    vf = vf_links(host, pf)[2][1]
    device = f"/sys/bus/pci/devices/{vf}"
    host.check(
        f"modprobe vfio-pci; echo vfio-pci >{device}/driver_override; "
        f"echo {vf} >/sys/bus/pci/drivers_probe; chmod 666 /dev/vfio/*"
    )
    group = host.check(f"basename $(readlink {device}/iommu_group)")
    name = "qemu-system-x86_64 -name guest=db-1"
    # Another user's process: its descriptors are seen by CAP_SYS_PTRACE alone.
    vm = f"import os; os.open('/dev/vfio/{group}', os.O_RDWR); import time; time.sleep(9999)"
    host.check(
        f'systemd-run --unit=vm --uid=nobody /usr/bin/python3 -c "{vm}" {name.partition(" ")[2]}'
    )
    host.machine.wait_for(lambda: host.exists("/proc/$(systemctl show -P MainPID vm)/fd/3"), 60)
    pid = int(host.show("vm.service", "MainPID"))
    found = probe(host, "holders", pf)["holders"]
    assert [(each["pid"], each["vf"]) for each in found] == [(pid, vf)]
    shows(f"real VFIO: the process of another user that has VF {vf} open is found, in the sandbox")
    host.check("systemctl stop vm.service")
    assert probe(host, "holders", pf)["holders"] == []


def test_a_dead_watch_shows_in_status(host: Node, shows: Shows) -> None:
    def named(name: str) -> bool:
        return name in host.run("gpu-bootstate status").stdout

    assert not named("gpu-bootstate-regate")
    host.check("systemctl stop gpu-bootstate-regate.path")
    assert named("gpu-bootstate-regate.path")
    host.check("systemctl start gpu-bootstate-regate.path")
    host.run(
        "systemctl stop gpu-bootstate-regate.service; "
        "mkdir -p /run/systemd/system/gpu-bootstate-regate.service.d; "
        "printf '[Service]\nExecStart=\nExecStart=/bin/false\n' "
        ">/run/systemd/system/gpu-bootstate-regate.service.d/99.conf; "
        "systemctl daemon-reload; systemctl start gpu-bootstate-regate.service"
    )
    assert host.show("gpu-bootstate-regate.service", "ActiveState") == "failed"
    assert named("gpu-bootstate-regate.service")
    shows("a stopped or failed watch of the gate shows in status")


# The last one: it takes the machine down.
def test_a_reboot_that_is_asked_for_comes(host: Node, pfs: list[str], shows: Shows) -> None:
    host.check(
        "systemd-run --unit=guest -p Type=oneshot -p RemainAfterExit=yes "
        "-p 'ExecStop=/bin/sh -c \"echo guest is shut down >/dev/ttyS0\"' true"
    )
    with contextlib.suppress(MachineError):  # the answer may come too late for the machine
        start_probe(host, "reboot", pfs[0])
    host.machine.wait_off(300)
    # Each service has been stopped, and then the kernel was told: neither reboot -f nor a panic.
    assert re.search(
        "guest is shut down.*reboot: Restarting system", host.machine.console(), re.DOTALL
    ), host.machine.console()
    shows("reboot asked for from the sandbox: systemd takes the machine down in order")
