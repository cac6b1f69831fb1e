"""GPU instance profiles, vGPU types and hand-made nodes for tests of pure code.

Profiles of the H200: hardware/h200-580.159.04.json. The other compute cards have the same ids and
placements with their own memory (NVIDIA's MIG guide). vGPU types: host-interfaces.md section 4.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_bootstate.model import (
    Bdf,
    DriverInfo,
    GiProfile,
    GpuFacts,
    HostVgpuMode,
    InstanceTarget,
    MigMode,
    ObservedGpu,
    ObservedNode,
    PciFunction,
    Placement,
    UnitState,
    VgpuType,
)

_SEVEN_SLICES = (
    (19, 1, 7, tuple(range(7)), 1),
    (20, 1, 1, tuple(range(7)), 1),
    (15, 1, 4, (0, 2, 4, 6), 2),
    (14, 2, 3, (0, 2, 4), 2),
    (9, 3, 2, (0, 4), 4),
    (5, 4, 1, (0,), 4),
    (0, 7, 1, (0,), 8),
)


def _seven_slices(*named: tuple[str, int]) -> tuple[GiProfile, ...]:
    return tuple(
        GiProfile(profile_id, name, slices, most, mib, tuple(Placement(s, size) for s in starts))
        for (name, mib), (profile_id, slices, most, starts, size) in zip(
            named, _SEVEN_SLICES, strict=True
        )
    )


H200 = _seven_slices(
    ("1g.18gb", 16384),
    ("1g.18gb+me", 16384),
    ("1g.35gb", 33280),
    ("2g.35gb", 33280),
    ("3g.71gb", 71424),
    ("4g.71gb", 71424),
    ("7g.141gb", 143360),
)
A100_40 = _seven_slices(
    ("1g.5gb", 4864),
    ("1g.5gb+me", 4864),
    ("1g.10gb", 9856),
    ("2g.10gb", 9856),
    ("3g.20gb", 19968),
    ("4g.20gb", 19968),
    ("7g.40gb", 40192),
)
# A card with four slices of which several vGPUs can share one. The ids are made up.
RTX_PRO = (
    GiProfile(47, "1g.24gb", 1, 4, 24000, tuple(Placement(s, 3) for s in (0, 3, 6, 9))),
    GiProfile(50, "1g.24gb+gfx", 1, 4, 24000, tuple(Placement(s, 3) for s in (0, 3, 6, 9))),
    GiProfile(51, "2g.48gb+gfx", 2, 2, 48000, (Placement(0, 6), Placement(6, 6))),
    GiProfile(52, "4g.96gb+gfx", 4, 1, 96000, (Placement(0, 12),)),
)


def by_name(profiles: tuple[GiProfile, ...], name: str) -> GiProfile:
    return next(profile for profile in profiles if profile.name == name)


def instances(profiles: tuple[GiProfile, ...], **wanted: int) -> list[InstanceTarget]:
    """``instances(H200, **{"1g.18gb": 3})``."""
    return [
        InstanceTarget(by_name(profiles, name).gi_profile_id, name, None)
        for name, count in wanted.items()
        for _ in range(count)
    ]


def _backed(
    first_id: int, profiles: tuple[GiProfile, ...], prefix: str, *suffixes: str
) -> tuple[VgpuType, ...]:
    """The MIG-backed types of a seven-slice card, one to an instance."""
    return tuple(
        VgpuType(
            first_id + n, f"{prefix}-{suffix}", p.memory_mib, p.max_instances, 1, p.gi_profile_id
        )
        for n, (p, suffix) in enumerate(zip(profiles, suffixes, strict=True))
    )


def _time_sliced(first_id: int, prefix: str, *sizes: tuple[int, int]) -> tuple[VgpuType, ...]:
    return tuple(
        VgpuType(first_id + n, f"{prefix}-{gb}C", gb * 1024, most, 0, None)
        for n, (gb, most) in enumerate(sizes)
    )


H200_TYPES = (
    *_backed(
        1413,
        H200,
        "NVIDIA H200X",
        "1-18C",
        "1-18CME",
        "1-35C",
        "2-35C",
        "3-71C",
        "4-71C",
        "7-141C",
    ),
    *_time_sliced(1420, "NVIDIA H200X", (4, 32), (8, 16), (17, 8), (35, 4), (70, 2), (141, 1)),
)
A100_40_TYPES = (
    *_backed(
        474, A100_40, "GRID A100", "1-5C", "1-5CME", "1-10C", "2-10C", "3-20C", "4-20C", "7-40C"
    ),
    *_time_sliced(481, "GRID A100", (4, 10), (5, 8), (8, 5), (10, 4), (20, 2), (40, 1)),
)
L40S_TYPES = _time_sliced(1145, "NVIDIA L40S", (1, 32), (6, 8), (12, 4), (24, 2), (48, 1))
RTX_PRO_TYPES = tuple(
    VgpuType(1546 + n, f"NVIDIA RTX Pro 6000 Blackwell DC-{slices}-{gb}Q", gb * 1000, 48, most, gi)
    for n, (slices, gb, most, gi) in enumerate(
        ((1, 2, 12, 50), (1, 8, 3, 50), (1, 24, 1, 50), (2, 48, 1, 51), (4, 96, 1, 52))
    )
)


def gpu(
    pf: str,
    index: int,
    *,
    name: str = "NVIDIA H200",
    device_id: int = 0x2335,
    profiles: tuple[GiProfile, ...] = H200,
    types: tuple[VgpuType, ...] = H200_TYPES,
    vf_count: int = 32,
) -> ObservedGpu:
    """A GPU of a vGPU host as it is after a boot: nothing carved."""
    pci = PciFunction(
        Bdf.parse(pf), device_id, 0x18BE, "nvidia", None, vf_count, 0, unbind_lock=False
    )
    facts = GpuFacts(
        nvml_index=index,
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        serial=f"16500000000{index:02d}",
        name=name,
        mig=MigMode(current=False, pending=False) if profiles else None,
        resetless_mig=True,
        recovery_action=None,
        host_vgpu_host=True,
        host_vgpu_mode=HostVgpuMode.SRIOV,
        persistence=False,
        mixed_size=False,
    )
    return ObservedGpu(pci, facts, gi_profiles=profiles, vgpu_types=types)


def a100(pf: str, index: int) -> ObservedGpu:
    return gpu(
        pf,
        index,
        name="NVIDIA A100-PCIE-40GB",
        device_id=0x20F1,
        profiles=A100_40,
        types=A100_40_TYPES,
        vf_count=16,
    )


def l40s(pf: str, index: int) -> ObservedGpu:
    return gpu(pf, index, name="NVIDIA L40S", device_id=0x26B9, profiles=(), types=L40S_TYPES)


def rtx_pro(pf: str, index: int) -> ObservedGpu:
    return gpu(
        pf,
        index,
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        device_id=0x2BB5,
        profiles=RTX_PRO,
        types=RTX_PRO_TYPES,
        vf_count=48,
    )


def unread(seen: ObservedGpu, driver: str | None) -> ObservedGpu:
    """The same card on another driver, or lost to NVML on its own."""
    lock = seen.pci.unbind_lock if driver == "nvidia" else None
    return ObservedGpu(replace(seen.pci, driver=driver, unbind_lock=lock), facts=None)


def with_serial(seen: ObservedGpu, serial: str) -> ObservedGpu:
    assert seen.facts is not None
    return replace(seen, facts=replace(seen.facts, serial=serial))


def off_vgpu_host(seen: ObservedGpu) -> ObservedGpu:
    """The same card under the data centre driver, or passed through to a guest."""
    assert seen.facts is not None
    facts = replace(seen.facts, host_vgpu_host=False, host_vgpu_mode=None)
    pci = replace(seen.pci, unbind_lock=None, sriov_totalvfs=0)
    return replace(seen, pci=pci, facts=facts, vgpu_types=())


def node(*gpus: ObservedGpu, driver: DriverInfo | None = None) -> ObservedNode:
    up = UnitState(
        name="nvidia-vgpu-mgr.service",
        exists=True,
        active_state="active",
        sub_state="running",
        result="success",
        exit_status=0,
        ran=True,
    )
    return ObservedNode(
        boot_id="boot",
        driver=driver or DriverInfo("580.105.06", "580.105.06", None),
        vgpud=up,
        vgpu_mgr=up,
        fabric_manager=up,
        fabric_mode=None,
        actors=(),
        gpus=tuple(sorted(gpus, key=lambda each: each.pf)),
    )


SLOTS = ("17", "3d", "60", "70", "98", "ba", "dd", "ed")


def hgx_h200() -> tuple[ObservedGpu, ...]:
    return tuple(gpu(f"0000:{slot}:00.0", index) for index, slot in enumerate(SLOTS))
