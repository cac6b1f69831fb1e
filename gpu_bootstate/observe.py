"""Hardware -> ObservedNode. Reads only.

A read that fails belongs to its GPU: it becomes a finding there and hides no other GPU.
"""

from __future__ import annotations

from functools import partial

from gpu_bootstate.failures import explain
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.model import PF_DRIVER, Bdf, DriverInfo, ObservedGpu, ObservedNode, PciFunction
from gpu_bootstate.side_by_side import side_by_side

VGPUD = "nvidia-vgpud.service"
VGPU_MGR = "nvidia-vgpu-mgr.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"


def observe(hw: Hardware, *, parallel: int = 8) -> ObservedNode:
    """Everything known of the node now. Raises HardwareError only when sysfs itself fails."""
    driver = hw.driver_info()
    pfs = hw.pfs()
    # GPUs side by side: a sick one may take its whole read limit.
    gpus = []
    for found in side_by_side(
        [partial(_observe_pf, hw, pci, driver) for pci in pfs], limit=parallel
    ):
        if isinstance(found, BaseException):
            raise found
        gpus.append(found)
    return ObservedNode(
        boot_id=hw.boot_id(),
        driver=driver,
        vgpud=hw.unit_state(VGPUD),
        vgpu_mgr=hw.unit_state(VGPU_MGR),
        fabric_manager=hw.unit_state(FABRIC_MANAGER),
        fabric_mode=hw.fabric_mode(),
        actors=hw.actors(),
        gpus=tuple(gpus),
    )


def observe_gpu(hw: Hardware, pf: Bdf) -> ObservedGpu:
    """One GPU, read again. Raises HardwareError when the PF left the bus."""
    return _observe_pf(hw, hw.pf(pf), None)


def _observe_pf(hw: Hardware, pci: PciFunction, driver: DriverInfo | None) -> ObservedGpu:
    """``driver`` saves the NVML calls where NVML is known not to answer at all."""
    try:
        vfs = hw.vfs(pci.bdf)
        holders = hw.holders(pci.bdf)
    except HardwareError as err:
        return ObservedGpu(pci, facts=None, findings=(explain(err, pci.bdf, driver=pci.driver),))
    bare = ObservedGpu(pci, facts=None, vfs=vfs, holders=holders)
    if pci.driver != PF_DRIVER or (driver is not None and driver.problem is not None):
        return bare
    try:
        facts = hw.facts(pci.bdf)
        has_mig = facts.mig is not None
        return ObservedGpu(
            pci,
            facts,
            gi_profiles=hw.gi_profiles(pci.bdf) if has_mig else (),
            gpu_instances=(
                hw.gpu_instances(pci.bdf) if facts.mig is not None and facts.mig.current else ()
            ),
            vgpu_types=hw.vgpu_types(pci.bdf),
            vfs=vfs,
            holders=holders,
        )
    except HardwareError as err:
        return ObservedGpu(
            pci,
            facts=None,
            vfs=vfs,
            holders=holders,
            findings=(explain(err, pci.bdf, driver=pci.driver),),
        )
