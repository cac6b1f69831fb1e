"""The real adapters on a host on disk: what the simulated node cannot show."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_bootstate.hardware import actors, holders, kernel, pci
from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError
from gpu_bootstate.model import Bdf, Framework, HolderKind, Placement
from gpu_bootstate.reasons import Code
from tests.support.host import SRIOV_MANAGE, Host

A, B = "0000:17:00.0", "0000:3d:00.0"
PF = Bdf.parse(A)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, {A: "h200", B: "h200"})


# --------------------------------------------------------------------------- NVML


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4, ErrorKind.NO_PERMISSION),
        (15, ErrorKind.GPU_LOST),
        (16, ErrorKind.RESET_REQUIRED),
        (19, ErrorKind.IN_USE),
        (999, ErrorKind.UNKNOWN),
    ],
)
def test_nvml_codes_become_kinds_with_the_gpu_and_what_was_done(
    host: Host, code: int, kind: ErrorKind
) -> None:
    host.error("nvmlDeviceGetMigMode", code)
    hw = host.hardware()
    with pytest.raises(HardwareError) as caught:
        hw.facts(PF)
    assert (caught.value.kind, caught.value.target) == (kind, PF)
    assert caught.value.operation == "read MIG mode"
    hw.end()


def test_a_fact_that_the_driver_does_not_have_is_unknown_and_not_off(tmp_path: Path) -> None:
    host = Host(tmp_path, {A: "h200"}, vgpu_host=False)
    for name in ("persistence", "serial", "recovery", "resetless"):
        host.nvml(A, name, -1)
    hw = host.hardware()
    facts = hw.facts(PF)
    assert (facts.persistence, facts.serial, facts.recovery_action) == (None, None, None)
    assert (facts.resetless_mig, facts.host_vgpu_mode, facts.mixed_size) == (None, None, None)
    assert facts.host_vgpu_host is False
    assert hw.vgpu_types(PF) == ()
    hw.end()


def test_a_mode_that_stays_pending_is_told_although_pynvml_does_not_raise(tmp_path: Path) -> None:
    host = Host(tmp_path, {A: "a100-pcie-40"})
    host.nvml(A, "held", 1)
    hw = host.hardware()
    assert hw.set_mig_mode(PF, enabled=True) is ActivationStatus.IN_USE
    mode = hw.facts(PF).mig
    assert (mode.current, mode.pending) == (False, True)
    hw.end()


def test_a_busy_instance_is_in_use_and_stays(host: Host) -> None:
    host.nvml(A, "mig_current", 1)
    host.write(f"nvml/gpus/{A}/instances", "7 19 0 1 0 1 0\n")
    hw = host.hardware()
    with pytest.raises(HardwareError) as caught:
        hw.destroy_gpu_instance(PF, 7)
    assert caught.value.kind is ErrorKind.IN_USE
    assert [gi.placement for gi in hw.gpu_instances(PF)] == [Placement(0, 1)]
    hw.end()


def test_active_vgpus_come_with_their_vm(host: Host) -> None:
    host.write(f"nvml/gpus/{A}/active", "3 1414 vm-7f\n")
    hw = host.hardware()
    (active,) = hw.facts(PF).active_vgpus
    assert (active.vm_id, active.vgpu_type_id) == ("vm-7f", 1414)
    hw.end()


def test_a_version_mismatch_is_told_with_both_versions(host: Host) -> None:
    host.error("nvmlInit", 18)
    host.write("usr/lib64/libnvidia-ml.so.595.45.04", "")
    (host.root / "usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.595.45.04")
    hw = host.hardware()
    problem = hw.driver_info().problem
    assert problem.code is Code.VERSION_MISMATCH
    assert (problem.fact("module"), problem.fact("library")) == ("580.159.04", "595.45.04")
    hw.end()


def test_no_module_means_no_driver_and_nvml_is_not_asked(host: Host) -> None:
    (host.root / "sys/module/nvidia/version").unlink()
    host.hang("nvmlInit")
    hw = host.hardware()
    assert hw.driver_info().problem.code is Code.DRIVER_NOT_LOADED
    hw.end()


# --------------------------------------------------------------------------- sysfs


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        pytest.param(
            "ID    : vGPU Name\n1414  : NVIDIA H200X-1-18C\n557   : NVIDIA RTX Pro 6000 DC-1-24Q\n",
            (1414, 557),
            id="T4-table",
        ),
        pytest.param("NVIDIA A40-1Q 557\nNVIDIA A40-2Q 558\n", (557, 558), id="T4-lines"),
        pytest.param("ID    : vGPU Name\n", (), id="T4-header-only"),
        pytest.param("", (), id="T4-empty"),
    ],
)
def test_creatable_types_are_read_in_every_shape(text: str, ids: tuple[int, ...]) -> None:
    assert pci.parse_creatable(text) == ids


def test_virtfn10_comes_after_virtfn2_V6(tmp_path: Path) -> None:
    host = Host(tmp_path, {A: "a100-pcie-40"})
    hw = host.hardware()
    assert hw.sriov_manage(PF, enable=True, timeout_s=30.0).exit_code == 0
    assert [vf.index for vf in hw.vfs(PF)] == list(range(20))
    hw.end()


def test_display_pfs_are_found_and_nothing_else(host: Host) -> None:
    audio = "sys/bus/pci/devices/0000:17:00.1"
    host.write(f"{audio}/vendor", "0x10de\n")
    host.write(f"{audio}/class", "0x040300\n")
    nic = "sys/bus/pci/devices/0000:18:00.0"
    host.write(f"{nic}/vendor", "0x15b3\n")
    host.write(f"{nic}/class", "0x020000\n")
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)  # VFs are display devices, too
    assert [str(pf.bdf) for pf in hw.pfs()] == [A, B]
    hw.end()


def test_a_vf_without_a_vgpu_interface_has_no_types_R13(host: Host) -> None:
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)
    vf = host.root / "sys/bus/pci/devices/0000:17:00.4"
    (vf / "driver").unlink()
    (vf / "driver").symlink_to("../../drivers/vfio-pci")
    for path in (vf / "nvidia").iterdir():
        path.unlink()
    (vf / "nvidia").rmdir()
    found = hw.vfs(PF)[0]
    assert (found.driver, found.framework, found.vgpu_type_id) == ("vfio-pci", None, None)
    hw.end()


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.ENOENT, errno.EPERM])
def test_a_refused_type_write_keeps_its_errno(host: Host, number: int) -> None:
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)
    host.fail_write("current_vgpu_type", number, times=1)
    with pytest.raises(HardwareError) as caught:
        hw.set_vgpu_type(hw.vfs(PF)[0].bdf, 1428, mdev_uuid=None)
    assert (caught.value.kind, caught.value.errno) == (ErrorKind.IO, number)
    assert hw.vfs(PF)[0].vgpu_type_id == 0
    hw.end()


def test_a_busy_attribute_is_in_use(host: Host) -> None:
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)
    host.fail_write("current_vgpu_type", errno.EBUSY, times=1)
    with pytest.raises(HardwareError) as caught:
        hw.set_vgpu_type(hw.vfs(PF)[0].bdf, 1428, mdev_uuid=None)
    assert caught.value.kind is ErrorKind.IN_USE
    hw.end()


def test_a_pf_on_a_driver_that_is_not_ours_is_never_unbound(host: Host) -> None:
    link = host.root / "sys/bus/pci/devices" / A / "driver"
    link.unlink()
    link.symlink_to("../../drivers/vfio-pci")
    hw = host.hardware()
    with pytest.raises(HardwareError) as caught:
        hw.bind_driver(PF)
    assert caught.value.kind is ErrorKind.IN_USE
    assert hw.pf(PF).driver == "vfio-pci"
    hw.end()


def test_an_unbound_pf_is_bound(host: Host) -> None:
    (host.root / "sys/bus/pci/devices" / A / "driver").unlink()
    host.nvml(A, "visible", 0)
    hw = host.hardware()
    assert hw.pf(PF).driver is None
    hw.bind_driver(PF)
    assert hw.pf(PF).driver == "nvidia"
    hw.end()


def test_mdevs_are_made_and_removed_where_the_kernel_has_them(host: Host) -> None:
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)
    vf = host.root / "sys/bus/pci/devices/0000:17:00.4"
    for path in (vf / "nvidia").iterdir():
        path.unlink()
    (vf / "nvidia").rmdir()
    kind = "mdev_supported_types/nvidia-1428"
    host.write(f"sys/bus/pci/devices/0000:17:00.4/{kind}/available_instances", "1\n")
    host.write(f"sys/bus/pci/devices/0000:17:00.4/{kind}/create", "")
    (host.root / "sys/class/mdev_bus").mkdir(parents=True)
    (host.root / "sys/class/mdev_bus/0000:17:00.4").symlink_to(vf)
    (host.root / "sys/bus/mdev/devices").mkdir(parents=True)
    found = hw.vfs(PF)[0]
    assert (found.framework, found.vgpu_type_id) == (Framework.MDEV, 0)
    assert hw.creatable_vgpu_types(found.bdf) == (1428,)

    uuid = "11111111-2222-3333-4444-555555555555"
    hw.set_vgpu_type(found.bdf, 1428, mdev_uuid=uuid)
    now = hw.vfs(PF)[0]
    assert (now.vgpu_type_id, now.mdev_uuid) == (1428, uuid)
    assert hw.creatable_vgpu_types(found.bdf) == ()
    hw.set_vgpu_type(found.bdf, 0, mdev_uuid=uuid)
    assert (hw.vfs(PF)[0].vgpu_type_id, hw.vfs(PF)[0].mdev_uuid) == (0, None)
    hw.end()


# --------------------------------------------------------------------------- holders


def _process(host: Host, pid: int, name: str, command: str, cgroup: str, *opened: str) -> None:
    host.write(f"proc/{pid}/comm", f"{name}\n")
    host.write(f"proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
    host.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
    (host.root / f"proc/{pid}/fd").mkdir()
    for number, target in enumerate(opened):
        (host.root / f"proc/{pid}/fd/{number}").symlink_to(target)


def test_holders_are_named_with_command_unit_and_kind(host: Host) -> None:
    hw = host.hardware()
    hw.sriov_manage(PF, enable=True, timeout_s=30.0)
    vf = host.root / "sys/bus/pci/devices/0000:17:00.4"
    (vf / "vfio-dev/vfio3").mkdir(parents=True)
    capability = "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access"
    host.write(capability, "DeviceFileMinor: 66\nDeviceFileMode: 256\n")
    nvml_client = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1")
    _process(
        host, 4127, "qemu-system-x86", "qemu-system-x86_64 -name guest=db-1,debug-threads=on",
        "/machine.slice/machine-qemu1.scope", "/dev/vfio/devices/vfio3", "/dev/vfio/vfio",
    )  # fmt: skip
    _process(
        host, 880, "nvidia-persiste", "/usr/bin/nvidia-persistenced",
        "/system.slice/nvidia-persistenced.service", "/dev/nvidia0", "/dev/nvidia1", *nvml_client,
    )  # fmt: skip
    _process(
        host, 900, "python3", "python3 train.py", "/user.slice/session-3.scope", "/dev/nvidia0",
        *nvml_client,
    )  # fmt: skip
    _process(host, 901, "mig-watch", "mig-watch", "/", "/dev/nvidia-caps/nvidia-cap66")
    _process(host, 902, "other", "other", "/", "/dev/nvidia1")
    host.write(f"nvml/gpus/{A}/compute", "900\n")

    found = {holder.pid: holder for holder in hw.holders(PF)}
    assert {pid: holder.kind for pid, holder in found.items()} == {
        4127: HolderKind.VM,
        880: HolderKind.CLIENT,
        900: HolderKind.COMPUTE,
        901: HolderKind.INSTANCE,
    }
    assert (found[4127].vm, str(found[4127].vf)) == ("db-1", "0000:17:00.4")
    assert str(found[4127]) == ("VM db-1: qemu-system-x86 (pid 4127, machine-qemu1.scope)")
    assert found[880].unit == "nvidia-persistenced.service"
    assert (found[901].gi_id, found[901].unit) == (7, None)
    assert found[900].command == "python3 train.py"
    hw.end()


def test_a_real_process_is_found_in_the_real_proc() -> None:
    nodes = holders.Nodes(gpu="/dev/zero", vfio={}, instances={})
    script = "import sys; f = open('/dev/zero'); print('open', flush=True); sys.stdin.read()"
    child = subprocess.Popen(  # noqa: S603  # ourselves
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        everyone = holders.find_holders(Path("/"), nodes, compute_pids=lambda: (), ours=())
        mine = next(holder for holder in everyone if holder.pid == child.pid)
        assert (mine.kind, mine.device) == (HolderKind.CLIENT, "/dev/zero")
        assert script in mine.command
        ours = holders.find_holders(Path("/"), nodes, compute_pids=lambda: (), ours={child.pid})
        assert child.pid not in {holder.pid for holder in ours}


# --------------------------------------------------------------------------- kernel log, actors


def test_the_kernel_log_is_read_from_records(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(
        "6,1,1000000,-;usb 1-1: new device\n"
        "4,2,21500000,-;NVRM: Failed to add vgpu create request: 0x38\n"
        " SUBSYSTEM=pci\n"
        "3,3,22000000,-;nvidia 0000:17:00.0: not enough MMIO resources for SR-IOV\n"
    )
    assert [(line.time_s, line.text) for line in kernel.kernel_log(tmp_path)] == [
        (21.5, "NVRM: Failed to add vgpu create request: 0x38"),
        (22.0, "nvidia 0000:17:00.0: not enough MMIO resources for SR-IOV"),
    ]


def test_the_real_kernel_log_does_not_block() -> None:
    for line in kernel.kernel_log(Path("/")):
        assert line.time_s <= time.monotonic() + 5


def test_other_software_is_named_and_our_own_unit_is_not(host: Host) -> None:
    units = "etc/systemd/system"
    calls = "[Service]\nExecStart=/usr/lib/nvidia/sriov-manage -e ALL\n"
    host.write("usr/lib/systemd/system/pve-nvidia-sriov@.service", calls)
    host.write("usr/lib/systemd/system/site-vgpu.service", calls)
    host.write("usr/lib/systemd/system/gpu-bootstate.service", calls)
    host.write(f"{units}/idle.service", calls)
    wants = host.root / units / "multi-user.target.wants"
    wants.mkdir()
    for name in ("pve-nvidia-sriov@ALL", "gpu-bootstate", "nvidia-mig-manager"):
        (wants / f"{name}.service").symlink_to(f"/usr/lib/systemd/system/{name}.service")
    _process(host, 77, "sriov-manage", "/bin/bash /usr/lib/nvidia/sriov-manage -e ALL", "/")
    host.write("run/nvidia/driver/usr/bin/nvidia-smi", "")
    assert [(actor.kind, actor.name) for actor in actors.find_actors(host.root, ours=())] == [
        ("unit", "nvidia-mig-manager.service"),
        ("unit", "pve-nvidia-sriov@ALL.service"),
        ("process", "sriov-manage"),
        ("container driver", "/run/nvidia/driver"),
    ]
    kinds = [actor.kind for actor in actors.find_actors(host.root, ours={77})]
    assert kinds == ["unit", "unit", "container driver"]


# --------------------------------------------------------------------------- whole commands

CONFIG = f"""
version: v1
gpus:
  - match: {{pci: "{A}"}}
    profile: {{mig: {{4g.71gb: 1, 1g.18gb: 3}}, vgpus: {{H200X-4-71C: 1, H200X-1-18C: 3}}}}
  - match: {{pci: "{B}"}}
    profile: {{vgpus: {{H200X-141C: 1}}}}
policy: {{sriov-manage: {SRIOV_MANAGE}, backoff: 0.05, backoff-max: 0.1, read-timeout: 30}}
"""


def test_a_bare_host_comes_up_through_the_real_adapters_and_then_sees_no_call(host: Host) -> None:
    for pf in (A, B):
        host.nvml(pf, "persistence", 1)
    first = host.json("apply", config=CONFIG)
    assert (first["condition"], first["exit_code"]) == ("converged", 0), first
    calls = host.calls
    lowered, raised = ([f"set_persistence {pf} {bit}" for pf in (A, B)] for bit in (0, 1))
    assert sorted(calls[:2]) == lowered  # the two GPUs side by side
    assert calls[2:-2] == [
        f"set_mig_mode {A} 1",
        f"sriov_manage {A} -e",
        f"sriov_manage {B} -e",
        f"create_gpu_instance {A} 5 0:4",
        *(f"create_gpu_instance {A} 19 {start}:1" for start in (4, 5, 6)),
    ]
    assert calls[-2:] == raised
    assert host.vf_types(A) == {0: 1418, 1: 1414, 2: 1414, 3: 1414}
    assert host.vf_types(B) == {0: 1428}
    assert (host.root / "run/gpu-bootstate/ready").exists()
    before = host.calls
    second = host.json("apply")
    assert (second["condition"], host.calls) == ("converged", before)
    assert all(not gpu["steps"] for gpu in second["gpus"])
    assert host.command("plan", "--exit-code").returncode == 0


def test_what_export_writes_plans_to_nothing(host: Host) -> None:
    assert host.json("apply", config=CONFIG)["exit_code"] == 0
    exported = host.command("export").stdout
    done = host.command("plan", "--exit-code", config=exported)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pf_left_on_the_stub_is_bound_back_and_tried_again_V3(host: Host) -> None:
    host.write("sriov-manage.plan", "stub")
    result = host.json("apply", config=CONFIG)
    assert result["exit_code"] == 0, result
    assert host.calls.count(f"sriov_manage {A} -e") == 2
    codes = [finding["reason"] for finding in result["gpus"][0]["findings"]]
    assert "pf-bound-back" in codes


def test_a_tool_that_does_nothing_twice_is_run_a_third_time_V1(host: Host) -> None:
    host.write("sriov-manage.plan", "noop noop")
    result = host.json("apply", config=CONFIG)
    assert result["exit_code"] == 0, result
    assert host.calls.count(f"sriov_manage {A} -e") == 3
    vfs = next(s for s in result["gpus"][0]["steps"] if s["action"] == "enable-vfs")
    assert vfs["attempts"] == 3


def test_a_tool_that_hangs_is_ended_and_the_other_gpu_comes_up(host: Host) -> None:
    host.write("sriov-manage.plan", "hang")
    config = CONFIG.replace("read-timeout: 30", "read-timeout: 30, tool-timeout: 2")
    result = host.json("apply", config=config)
    assert result["exit_code"] == 2, result
    assert [gpu["reason"] for gpu in result["gpus"]] == ["tool-hung", None]
    assert host.vf_types(B) == {0: 1428}
    assert not (host.root / "run/gpu-bootstate/ready").exists()


def test_a_missing_tool_is_named_and_not_tried_again_R5(host: Host) -> None:
    config = CONFIG.replace(SRIOV_MANAGE, "/usr/lib/nvidia/no-such-tool")
    result = host.json("apply", config=config)
    assert result["exit_code"] == 5, result
    assert "/usr/lib/nvidia/no-such-tool" in result["gpus"][0]["message"]
    assert [s["attempts"] for s in result["gpus"][0]["steps"] if s["status"] == "failed"] == [1]


def test_a_hung_nvml_read_of_one_gpu_keeps_neither_the_other_nor_the_process(host: Host) -> None:
    host.write(f"nvml/gpus/{A}/visible", "1\n")
    fifo = host.state / "gpus" / A / "serial"
    fifo.unlink()
    os.mkfifo(fifo)  # reading it blocks for ever, as a sick GPU does
    config = CONFIG.replace("read-timeout: 30", "read-timeout: 5")
    result = host.json("apply", config=config)
    assert result["exit_code"] == 2, result
    assert [gpu["reason"] for gpu in result["gpus"]] == ["gpu-hung", None]
    assert host.vf_types(B) == {0: 1428}


def test_a_guest_without_the_vgpu_host_driver_is_told_so(tmp_path: Path) -> None:
    host = Host(tmp_path, {A: "h200"}, vgpu_host=False)
    config = f'version: v1\ngpus: [{{match: {{pci: "{A}"}}, profile: {{mig: {{1g.18gb: 7}}}}}}]\n'
    for command in ("status", "plan", "check", "apply"):
        done = host.command(command, config=config)
        assert done.returncode == 5, (command, done.stdout, done.stderr)
        assert "is not run by a vGPU host driver" in done.stdout
    assert host.calls == []


def test_a_host_without_a_driver_is_exit_5_and_its_gate_stays_shut(tmp_path: Path) -> None:
    host = Host(tmp_path, {})
    (tmp_path / "sys/module/nvidia/version").unlink()
    config = f'version: v1\npolicy: {{manager-wait: 0.5}}\ngpus: [{{match: {{pci: "{A}"}}, '
    config += "profile: {mode: none}}]\n"
    assert host.command("apply", config=config).returncode == 5
    assert host.command("gate").returncode == 1
    assert not (tmp_path / "run/gpu-bootstate/ready").exists()


def test_sigterm_ends_a_tool_that_is_running_and_says_how_far_the_run_got(host: Host) -> None:
    host.write("sriov-manage.plan", "hang")
    host.write("etc/gpu-bootstate/config.yaml", CONFIG)
    words = [sys.executable, "-m", "gpu_bootstate", "--root", str(host.root)]
    process = subprocess.Popen(  # noqa: S603  # ourselves
        [*words, "apply", "--format", "json"],
        env=host.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while f"sriov_manage {A} -e" not in host.calls:
        time.sleep(0.05)
    process.terminate()
    out, err = process.communicate()
    assert "Traceback" not in err
    result = json.loads(out)
    assert result["gpus"][0]["reason"] == "interrupted"
    assert (process.returncode, result["progress"]) == (1, "done")
    assert host.calls.count(f"sriov_manage {A} -e") == 1
    assert not (host.root / "run/gpu-bootstate/ready").exists()
    assert host.json("apply")["exit_code"] == 0


def test_waits_end_at_an_event_or_at_their_limit_and_all_of_them_when_cancelled(
    tmp_path: Path,
) -> None:
    from gpu_bootstate.hardware.protocol import CallLimits
    from gpu_bootstate.hardware.real import RealHardware

    hw = RealHardware(tmp_path, limits=CallLimits(), sriov_manage=SRIOV_MANAGE)
    before = hw.now()
    hw.wait_for_event(0.05)
    assert hw.now() - before >= 0.04
    threading.Timer(0.1, hw.cancel_waits).start()
    hw.sleep(600)
    hw.wait_for_event(600)
    hw.close()
