"""The NVML adapter, through the unmodified pynvml, over a library built against NVIDIA's header."""

from __future__ import annotations

import ctypes.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError
from gpu_bootstate.model import (
    ActiveVgpu,
    Bdf,
    GiProfile,
    GpuFacts,
    GpuInstance,
    HostVgpuMode,
    MigMode,
    Placement,
    RecoveryAction,
    VgpuType,
)
from tests.support.host import Host
from tests.support.nvml import RemoteNvml, remote_nvml

PF, OTHER = "0000:17:00.0", "0000:3d:00.0"
CAPTURE = Path(__file__).parents[1] / "fixtures/h200-580.159.04.json"

SEVEN, ONE = 0, 19  # GPU instance profiles 7g and 1g

Opened = tuple[Host, RemoteNvml]
Opener = Callable[..., Opened]


@pytest.fixture(scope="module")
def process() -> Iterator[RemoteNvml]:
    with remote_nvml() as gpu:
        yield gpu


@pytest.fixture
def opened(process: RemoteNvml, tmp_path: Path) -> Opener:
    """`opened("h200")`: a node with two of these cards, and the adapter of the first."""

    def make(model: str = "h200", *, vgpu_host: bool = True) -> Opened:
        host = Host(tmp_path, {PF: model, OTHER: model}, vgpu_host=vgpu_host)
        process.start_over(host, PF)
        return host, process

    return make


def plant(host: Host, function: str, code: int, *, pf: str = "*", times: int = -1) -> None:
    with (host.state / "errors").open("a", encoding="utf-8") as file:
        file.write(f"{function} {code} {pf} {times}\n")


def with_mig(host: Host, *instances: str) -> None:
    host.nvml(PF, "mig_current", 1)
    host.nvml(PF, "mig_pending", 1)
    host.write(f"nvml/gpus/{PF}/instances", "".join(f"{row}\n" for row in instances))


def failure(call: Callable[..., Any], *arguments: Any, **named: Any) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        call(*arguments, **named)
    return caught.value


def changes(host: Host) -> list[str]:
    return [" ".join(call.split()) for call in host.calls]


# --------------------------------------------------------------------------- facts


def test_every_fact_of_a_vgpu_host(opened: Opener) -> None:
    host, gpu = opened("h200")
    host.write(f"nvml/gpus/{PF}/active", "9 1428 6c7d0f3a-vm\n")
    assert gpu.facts() == GpuFacts(
        nvml_index=0,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        serial="1651230000000",
        name="NVIDIA H200",
        mig=MigMode(current=False, pending=False),
        resetless_mig=True,
        recovery_action=RecoveryAction.NONE,
        host_vgpu_host=True,
        host_vgpu_mode=HostVgpuMode.SRIOV,
        persistence=False,
        mixed_size=False,
        active_vgpus=(ActiveVgpu("6c7d0f3a-vm", 1428),),
    )


def test_a_passthrough_guest_says_of_itself_what_the_real_h200_said(opened: Opener) -> None:
    measured = json.loads(CAPTURE.read_text(encoding="utf-8"))["device"]
    host, gpu = opened("h200", vgpu_host=False)
    host.nvml(PF, "persistence", measured["PersistenceMode"])
    facts = gpu.facts()
    assert facts.name == measured["Name"]
    assert facts.mig == MigMode(*map(bool, measured["MigMode"]))
    assert facts.persistence is bool(measured["PersistenceMode"])
    assert facts.host_vgpu_host is (measured["VirtualizationMode"] == 3)
    for not_supported in ("HostVgpuMode", "VgpuHeterogeneousMode", "ActiveVgpus", "SupportedVgpus"):
        assert measured[not_supported]["code"] == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert (facts.host_vgpu_mode, facts.mixed_size, facts.active_vgpus) == (None, None, ())
    assert gpu.vgpu_types() == ()


OPTIONAL = {
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetHostVgpuMode": "host_vgpu_mode",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetVgpuHeterogeneousMode": "mixed_size",
    "nvmlDeviceGetFieldValues": "resetless_mig",
}


@pytest.mark.parametrize("code", [3, 13, 25])  # not supported; no such call; no such structure
@pytest.mark.parametrize("function", OPTIONAL)
def test_what_the_driver_does_not_have_is_none_and_never_off(
    opened: Opener, function: str, code: int
) -> None:
    host, gpu = opened()
    plant(host, function, code)
    assert getattr(gpu.facts(), OPTIONAL[function]) is None


@pytest.mark.parametrize("error", [3, 2])  # not supported; newer than the driver
@pytest.mark.parametrize("field", ["resetless", "recovery"])
def test_one_field_without_a_value_leaves_the_other(opened: Opener, field: str, error: int) -> None:
    host, gpu = opened()
    host.nvml(PF, field, -error)
    facts = gpu.facts()
    assert (facts.resetless_mig is None) == (field == "resetless")
    assert (facts.recovery_action is None) == (field == "recovery")


@pytest.mark.parametrize("function", [*OPTIONAL, "nvmlDeviceGetUUID", "nvmlDeviceGetActiveVgpus"])
def test_an_unknown_error_in_a_fact_is_an_error_and_no_value(opened: Opener, function: str) -> None:
    host, gpu = opened()
    plant(host, function, pynvml.NVML_ERROR_UNKNOWN)
    error = failure(gpu.facts)
    assert (error.kind, error.target) == (ErrorKind.UNKNOWN, Bdf.parse(PF))
    assert error.operation.split()[0] in ("read", "list")


def test_a_field_that_fails_is_an_error_although_the_call_succeeded(opened: Opener) -> None:
    host, gpu = opened()
    host.nvml(PF, "recovery", -pynvml.NVML_ERROR_UNKNOWN)
    error = failure(gpu.facts)
    assert (error.kind, error.operation) == (ErrorKind.UNKNOWN, "read a field value")


def test_a_gpu_that_wants_a_reboot_says_so(opened: Opener) -> None:
    host, gpu = opened()
    for action in RecoveryAction:
        host.nvml(PF, "recovery", action.value)
        assert gpu.facts().recovery_action is action


def test_a_vm_that_ends_while_it_is_looked_at_is_left_out(opened: Opener) -> None:
    host, gpu = opened()
    host.write(f"nvml/gpus/{PF}/active", "9 1428 ended\n10 1428 running\n")
    plant(host, "nvmlVgpuInstanceGetVmID", pynvml.NVML_ERROR_NOT_FOUND, times=1)
    assert gpu.facts().active_vgpus == (ActiveVgpu("running", 1428),)


def test_compute_graphics_and_mps_processes_are_listed_once(opened: Opener) -> None:
    host, gpu = opened()
    for name, pids in {"compute": "41\n7\n", "graphics": "41\n", "mps": "12\n"}.items():
        host.write(f"nvml/gpus/{PF}/{name}", pids)
    assert gpu.compute_pids() == (7, 12, 41)


@pytest.mark.parametrize("which", ["Compute", "Graphics", "MPSCompute"])
def test_a_driver_without_one_list_of_processes_still_gives_the_others(
    opened: Opener, which: str
) -> None:
    host, gpu = opened()
    lists = {"Compute": ("compute", 7), "Graphics": ("graphics", 41), "MPSCompute": ("mps", 12)}
    for name, pid in lists.values():
        host.write(f"nvml/gpus/{PF}/{name}", f"{pid}\n")
    missing = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    plant(host, f"nvmlDeviceGet{which}RunningProcesses_v3", missing)
    assert set(gpu.compute_pids()) == {7, 12, 41} - {lists[which][1]}


def test_every_gpu_is_told_apart_by_its_address(opened: Opener) -> None:
    host, gpu = opened()
    for pf in (PF, OTHER):
        host.nvml(pf, "uuid", f"GPU-{pf}")
        gpu.start_over(host, pf)
        assert gpu.facts().uuid == f"GPU-{pf}"


@pytest.mark.parametrize("pf", ["0001:04:00.0", "10000:04:00.0"])
def test_a_pci_domain_is_found_in_nvml_s_spelling(
    process: RemoteNvml, tmp_path: Path, pf: str
) -> None:
    host = Host(tmp_path, {"0000:04:00.0": "h200", pf: "h200"})
    host.nvml(pf, "name", "the right one")
    process.start_over(host, pf)
    assert process.facts().name == "the right one"


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, ErrorKind.NOT_READY),
        (2, ErrorKind.INVALID_ARGUMENT),
        (3, ErrorKind.NOT_SUPPORTED),
        (4, ErrorKind.NO_PERMISSION),
        (6, ErrorKind.NOT_FOUND),
        (9, ErrorKind.NOT_READY),
        (10, ErrorKind.UNKNOWN),  # a time-out inside the driver; HUNG is ours
        (12, ErrorKind.NOT_READY),
        (13, ErrorKind.NOT_SUPPORTED),
        (15, ErrorKind.GPU_LOST),
        (16, ErrorKind.RESET_REQUIRED),
        (17, ErrorKind.UNKNOWN),
        (18, ErrorKind.VERSION_MISMATCH),
        (19, ErrorKind.IN_USE),
        (20, ErrorKind.UNKNOWN),
        (23, ErrorKind.INSUFFICIENT_RESOURCES),
        (25, ErrorKind.NOT_SUPPORTED),
        (26, ErrorKind.NOT_SUPPORTED),
        (27, ErrorKind.NOT_READY),
        (28, ErrorKind.NOT_FOUND),
        (29, ErrorKind.UNKNOWN),
        (999, ErrorKind.UNKNOWN),
        (4711, ErrorKind.UNKNOWN),
    ],
)
def test_each_nvml_error_has_its_kind_and_names_what_was_tried(
    opened: Opener, code: int, kind: ErrorKind
) -> None:
    host, gpu = opened()
    plant(host, "nvmlDeviceSetPersistenceMode", code)
    error = failure(gpu.set_persistence, enabled=True)
    assert (error.kind, error.operation) == (kind, "set persistence mode")
    assert error.target == Bdf.parse(PF)
    assert error.detail
    assert host.calls == []


def test_an_error_of_one_gpu_is_not_that_of_another(opened: Opener) -> None:
    host, gpu = opened()
    plant(host, "nvmlDeviceGetMigMode", pynvml.NVML_ERROR_GPU_IS_LOST, pf=OTHER)
    assert gpu.facts().mig == MigMode(current=False, pending=False)
    gpu.start_over(host, OTHER)
    assert failure(gpu.facts).kind is ErrorKind.GPU_LOST


# --------------------------------------------------------------------------- profiles and types


def test_profiles_are_those_that_the_real_h200_listed(opened: Opener) -> None:
    measured = json.loads(CAPTURE.read_text(encoding="utf-8"))["device"]
    expected, rows = [], []
    for number, info in measured["gi_profiles_v2"].items():
        if "error" in info:
            continue
        places = measured["placements"][number]["placements"]
        text = ",".join(f"{place['start']}:{place['size']}" for place in places)
        name = info["name"].removeprefix("MIG ")
        counts = f"{info['sliceCount']} {info['instanceCount']} {info['memorySizeMB']}"
        rows.append(f"{number} {info['id']} {counts} {name} {text}\n")
        expected.append(
            GiProfile(
                gi_profile_id=info["id"],
                name=name,
                slice_count=info["sliceCount"],
                max_instances=info["instanceCount"],
                memory_mib=info["memorySizeMB"],
                placements=tuple(Placement(place["start"], place["size"]) for place in places),
            )
        )
    host, gpu = opened("h200", vgpu_host=False)
    host.write(f"nvml/gpus/{PF}/profiles", "".join(rows))
    assert len(expected) == 7
    assert gpu.gi_profiles() == tuple(expected)


def test_a_profile_newer_than_pynvml_is_found(opened: Opener) -> None:
    host, gpu = opened()
    newest = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 1
    host.nvml(PF, "known_profiles", newest + 1)
    host.write(
        f"nvml/gpus/{PF}/profiles", f"0 19 1 7 16384 1g.18gb 0:1\n{newest} 99 2 3 9 2g.x 0:2\n"
    )
    assert [profile.name for profile in gpu.gi_profiles()] == ["1g.18gb", "2g.x"]


def test_a_hole_in_the_driver_s_numbering_does_not_end_the_list(opened: Opener) -> None:
    host, gpu = opened()
    plant(host, "nvmlDeviceGetGpuInstanceProfileInfoV", 2, times=1)
    assert len(gpu.gi_profiles()) == 6


def test_a_part_without_mig_has_no_profiles_and_no_instances(opened: Opener) -> None:
    _, gpu = opened("l40s")
    assert gpu.facts().mig is None
    assert gpu.gi_profiles() == ()
    assert gpu.gpu_instances() == ()


def test_a_profile_that_cannot_be_read_is_no_missing_profile(opened: Opener) -> None:
    host, gpu = opened()
    plant(host, "nvmlDeviceGetGpuInstanceProfileInfoV", pynvml.NVML_ERROR_UNKNOWN)
    assert failure(gpu.gi_profiles).kind is ErrorKind.UNKNOWN
    (host.state / "errors").unlink()
    assert len(gpu.gi_profiles()) == 7


def test_vgpu_types_with_and_without_a_gpu_instance_profile(opened: Opener) -> None:
    host, gpu = opened()
    host.write(
        f"nvml/gpus/{PF}/types",
        "1414 18432 7 1 19 NVIDIA H200X-1-18C\n1428 144384 1 0 -1 NVIDIA H200X-141C\n",
    )
    assert gpu.vgpu_types() == (
        VgpuType(1414, "NVIDIA H200X-1-18C", 18432, 7, max_per_gi=1, gi_profile_id=19),
        VgpuType(1428, "NVIDIA H200X-141C", 144384, 1, max_per_gi=0, gi_profile_id=None),
    )


def test_names_of_several_words_and_several_vgpus_to_an_instance(opened: Opener) -> None:
    _, gpu = opened("rtx-pro-6000")
    small = next(kind for kind in gpu.vgpu_types() if kind.name.endswith("DC-1-2Q"))
    assert small.name == "NVIDIA RTX Pro 6000 Blackwell DC-1-2Q"
    assert (small.max_per_gi, small.gi_profile_id) == (12, 47)


def test_a_driver_that_cannot_say_holds_one_vgpu_an_instance(opened: Opener) -> None:
    host, gpu = opened("rtx-pro-6000")
    plant(host, "nvmlVgpuTypeGetMaxInstancesPerGpuInstance", 13)
    kinds = gpu.vgpu_types()
    assert {kind.max_per_gi for kind in kinds if kind.gi_profile_id is not None} == {1}
    assert {kind.max_per_gi for kind in kinds if kind.gi_profile_id is None} <= {0}


# --------------------------------------------------------------------------- MIG mode


@pytest.mark.parametrize("enabled", [True, False])
def test_mig_mode_that_takes_effect_at_once(opened: Opener, *, enabled: bool) -> None:
    host, gpu = opened()
    for name in ("mig_current", "mig_pending"):
        host.nvml(PF, name, int(not enabled))
    assert gpu.set_mig_mode(enabled=enabled) is ActivationStatus.SUCCESS
    assert gpu.facts().mig == MigMode(current=enabled, pending=enabled)
    assert changes(host) == [f"set_mig_mode {PF} {int(enabled)}"]


def test_mig_mode_of_a_held_gpu_is_pending_and_says_who_stands_in_the_way(opened: Opener) -> None:
    host, gpu = opened("a100-pcie-40")
    host.nvml(PF, "held", 1)
    assert gpu.set_mig_mode(enabled=True) is ActivationStatus.IN_USE
    mode = gpu.facts().mig
    assert mode == MigMode(current=False, pending=True)
    assert mode.is_pending


def test_mig_mode_of_a_part_without_it(opened: Opener) -> None:
    host, gpu = opened("l40s")
    assert failure(gpu.set_mig_mode, enabled=True).kind is ErrorKind.NOT_SUPPORTED
    assert host.calls == []


def test_what_was_read_before_a_mode_change_is_read_again(opened: Opener) -> None:
    host, gpu = opened()
    assert len(gpu.gi_profiles()) == 7
    host.write(f"nvml/gpus/{PF}/profiles", "0 19 1 7 16384 1g.18gb 0:1\n")
    gpu.set_mig_mode(enabled=True)
    assert len(gpu.gi_profiles()) == 1


# --------------------------------------------------------------------------- GPU instances


def test_an_instance_is_where_it_was_put(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host)
    ids = [gpu.create_gpu_instance(ONE, Placement(start, 1)) for start in (4, 0)]
    found = gpu.gpu_instances()
    assert [gi.gi_id for gi in found] == sorted(ids)
    assert {gi.gi_id: gi.placement.start for gi in found} == dict(zip(ids, (4, 0), strict=True))
    assert {gi.gi_profile_id for gi in found} == {ONE}
    assert {gi.compute_instances for gi in found} == {0}


@pytest.mark.parametrize(
    ("profile", "placement", "kind"),
    [
        (ONE, Placement(0, 1), ErrorKind.INSUFFICIENT_RESOURCES),  # taken
        (SEVEN, Placement(0, 8), ErrorKind.INSUFFICIENT_RESOURCES),  # overlaps
        (ONE, Placement(7, 1), ErrorKind.INVALID_ARGUMENT),  # no place of this profile
        (77, Placement(1, 1), ErrorKind.INVALID_ARGUMENT),  # no profile
    ],
)
def test_an_instance_that_does_not_fit_is_refused(
    opened: Opener, profile: int, placement: Placement, kind: ErrorKind
) -> None:
    host, gpu = opened()
    with_mig(host, "7 19 0 1 0 0 -1")
    error = failure(gpu.create_gpu_instance, profile, placement)
    assert (error.kind, error.operation) == (kind, "create a GPU instance")
    assert host.calls == []


def test_with_mig_off_there_are_no_instances_and_none_can_be_made(opened: Opener) -> None:
    _, gpu = opened()
    assert gpu.gpu_instances() == ()
    error = failure(gpu.create_gpu_instance, ONE, Placement(0, 1))
    assert error.kind is ErrorKind.NOT_SUPPORTED


@pytest.mark.parametrize("function", ["nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo"])
@pytest.mark.parametrize("code", [2, 999])
def test_instances_that_cannot_be_read_are_not_no_instances(
    opened: Opener, function: str, code: int
) -> None:
    host, gpu = opened()
    with_mig(host, "7 19 0 1 0 0 -1")
    plant(host, function, code)
    assert failure(gpu.gpu_instances).kind in (ErrorKind.INVALID_ARGUMENT, ErrorKind.UNKNOWN)


def test_instances_with_their_compute_instances_and_mixed_size_mode(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host, "7 19 6 1 1 0 0", "1 9 0 4 3 0 1", "8 19 5 1 0 0 -1")
    assert gpu.gpu_instances() == (
        GpuInstance(1, 9, Placement(0, 4), compute_instances=3, mixed_size=True),
        GpuInstance(7, 19, Placement(6, 1), compute_instances=1, mixed_size=False),
        GpuInstance(8, 19, Placement(5, 1), compute_instances=0, mixed_size=None),
    )


def test_destroying_an_instance_takes_its_idle_compute_instances_along(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host, "1 9 0 4 3 0 0", "7 19 6 1 1 0 0")
    gpu.destroy_gpu_instance(1)
    assert changes(host) == [f"destroy_compute_instance {PF}"] * 3 + [
        f"destroy_gpu_instance {PF} 1"
    ]
    assert [gi.gi_id for gi in gpu.gpu_instances()] == [7]


def test_an_instance_with_a_client_is_in_use_and_stays(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host, "7 19 6 1 1 1 0", "8 19 5 1 0 1 0")
    assert failure(gpu.destroy_gpu_instance, 7).kind is ErrorKind.IN_USE
    assert failure(gpu.destroy_gpu_instance, 8).kind is ErrorKind.IN_USE
    assert len(gpu.gpu_instances()) == 2
    assert host.calls == []


def test_an_instance_that_is_not_there_is_not_found(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host)
    for call in (gpu.destroy_gpu_instance, gpu.create_compute_instance):
        assert failure(call, 7).kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize(
    ("instance", "profile"), [("0 0 0 8 0 0 0", 4), ("1 9 0 4 0 0 0", 2), ("7 19 6 1 0 0 0", 0)]
)
def test_a_compute_instance_takes_the_whole_gpu_instance(
    opened: Opener, instance: str, profile: int
) -> None:
    host, gpu = opened()
    with_mig(host, instance)
    gi_id = int(instance.split()[0])
    gpu.create_compute_instance(gi_id)
    assert changes(host) == [f"create_compute_instance {PF} {gi_id} profile {profile}"]
    assert [gi.compute_instances for gi in gpu.gpu_instances()] == [1]
    assert failure(gpu.create_compute_instance, gi_id).kind is ErrorKind.INSUFFICIENT_RESOURCES


# --------------------------------------------------------------------------- other changes


@pytest.mark.parametrize("enabled", [True, False])
def test_persistence_is_set_on_this_gpu_alone(opened: Opener, *, enabled: bool) -> None:
    host, gpu = opened()
    host.nvml(PF, "persistence", int(not enabled))
    gpu.set_persistence(enabled=enabled)
    assert gpu.facts().persistence is enabled
    assert changes(host) == [f"set_persistence {PF} {int(enabled)}"]


def test_mixed_size_mode_of_a_whole_gpu(opened: Opener) -> None:
    _, gpu = opened("l40s")
    gpu.set_mixed_size(enabled=True, gi_id=None)
    assert gpu.facts().mixed_size is True


def test_mixed_size_mode_of_one_instance(opened: Opener) -> None:
    host, gpu = opened("rtx-pro-6000")
    with_mig(host, "7 47 0 1 0 0 0", "8 47 1 1 0 0 0")
    gpu.set_mixed_size(enabled=True, gi_id=8)
    assert {gi.gi_id: gi.mixed_size for gi in gpu.gpu_instances()} == {7: False, 8: True}


def test_mixed_size_mode_that_the_part_does_not_have(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host, "7 19 6 1 0 0 -1")
    for gi_id in (None, 7):
        error = failure(gpu.set_mixed_size, enabled=True, gi_id=gi_id)
        assert (error.kind, error.operation) == (ErrorKind.NOT_SUPPORTED, "set mixed-size mode")
    assert host.calls == []


def test_mixed_size_mode_of_a_gpu_without_it_or_with_a_vgpu(opened: Opener) -> None:
    host, gpu = opened("l40s")
    host.write(f"nvml/gpus/{PF}/active", "9 1428 a-vm\n")
    assert failure(gpu.set_mixed_size, enabled=True, gi_id=None).kind is ErrorKind.IN_USE
    host.nvml(PF, "mixed_size", -1)
    assert failure(gpu.set_mixed_size, enabled=True, gi_id=None).kind is ErrorKind.NOT_SUPPORTED
    assert host.calls == []


# --------------------------------------------------------------------------- sessions


def test_a_session_starts_with_the_first_call_and_ends_on_request(opened: Opener) -> None:
    host, gpu = opened()
    gpu.close_session()
    assert not gpu.has_open(host, PF)
    gpu.facts()
    assert gpu.has_open(host, PF)
    assert gpu.has_open(host, OTHER)  # as measured: a session is a client of every GPU
    gpu.close_session()
    assert not gpu.has_open(host, PF)
    assert not gpu.has_open(host, OTHER)


def test_nothing_of_a_session_is_used_in_the_next(opened: Opener) -> None:
    host, gpu = opened()
    with_mig(host, "1 9 0 4 0 0 0", "2 9 4 4 0 0 0")
    assert len(gpu.gi_profiles()) == 7
    assert len(gpu.vgpu_types()) > 1
    gpu.create_compute_instance(1)
    gpu.close_session()
    host.write(f"nvml/gpus/{PF}/profiles", "2 9 4 2 71424 4g.71gb 0:4,4:4\n")
    host.write(f"nvml/gpus/{PF}/types", "1417 72704 2 1 9 NVIDIA H200X-3-71C\n")
    assert [profile.name for profile in gpu.gi_profiles()] == ["4g.71gb"]
    assert [kind.vgpu_type_id for kind in gpu.vgpu_types()] == [1417]
    gpu.create_compute_instance(2)
    assert changes(host) == [
        f"create_compute_instance {PF} 1 profile 2",
        f"create_compute_instance {PF} 2 profile 3",
    ]


def test_a_gpu_that_nvml_does_not_list_is_looked_for_afresh(opened: Opener) -> None:
    host, gpu = opened()
    host.nvml(PF, "visible", 0)
    error = failure(gpu.facts)
    assert (error.kind, error.operation) == (ErrorKind.NOT_FOUND, "find the GPU in NVML")
    assert not gpu.has_open(host, OTHER)  # no session is left behind
    host.nvml(PF, "visible", 1)
    assert gpu.facts().name == "NVIDIA H200"


@pytest.mark.parametrize("code", [1, 15, 999])
def test_after_an_error_of_the_session_itself_the_next_call_starts_a_new_one(
    opened: Opener, code: int
) -> None:
    host, gpu = opened()
    gpu.facts()
    plant(host, "nvmlDeviceGetName", code, times=1)
    failure(gpu.facts)
    assert not gpu.has_open(host, PF)
    assert gpu.facts().name == "NVIDIA H200"


def test_an_error_of_the_call_alone_keeps_the_session(opened: Opener) -> None:
    host, gpu = opened()
    plant(host, "nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_NO_PERMISSION)
    failure(gpu.set_persistence, enabled=True)
    assert gpu.has_open(host, PF)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(9, ErrorKind.NOT_READY), (18, ErrorKind.VERSION_MISMATCH), (4, ErrorKind.NO_PERMISSION)],
)
def test_nvml_that_does_not_start(opened: Opener, code: int, kind: ErrorKind) -> None:
    host, gpu = opened()
    plant(host, "nvmlInit", code)
    error = failure(gpu.facts)
    assert (error.kind, error.operation) == (kind, "start NVML")
    version, found, text = gpu.version_check()
    assert (version, found) == (None, kind)
    assert text


def test_the_library_s_version_leaves_no_session(opened: Opener) -> None:
    host, gpu = opened()
    assert gpu.version_check() == ("580.159.04", None, "")
    assert not gpu.has_open(host, PF)


@pytest.mark.skipif(
    ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has a real library"
)
def test_without_a_library_nvml_is_not_ready(tmp_path: Path) -> None:
    with remote_nvml(library=False) as gpu:
        gpu.start_over(Host(tmp_path, {PF: "h200"}), PF)
        assert failure(gpu.facts).kind is ErrorKind.NOT_READY
        assert gpu.version_check() == (None, ErrorKind.NOT_READY, "NVML Shared Library Not Found")
