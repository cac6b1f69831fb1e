"""Whether the node is ready to be worked on: driver, NVML, vGPU manager. Reads and waits only."""

from __future__ import annotations

from gpu_bootstate.deadline import Deadline
from gpu_bootstate.hardware.protocol import Hardware
from gpu_bootstate.model import Policy, UnitState
from gpu_bootstate.progress import Listener
from gpu_bootstate.reasons import Code, Finding

VGPUD = "nvidia-vgpud.service"
VGPU_MGR = "nvidia-vgpu-mgr.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"

_POLL_S = 0.5  # units and modules announce nothing that we could wait for without D-Bus


def wait_until_ready(
    hw: Hardware, policy: Policy, deadline: Deadline, listener: Listener
) -> Finding | None:
    """None when NVML answers and the vGPU manager is up; else what is still missing when
    ``policy.manager_wait_s`` is over. Raises RunEnded.

    Units that the host does not have are not waited for: the manager may run in a container.
    """
    started = hw.now()
    until = started + policy.manager_wait_s
    while True:
        missing = _missing(hw, waited_s=hw.now() - started)
        if missing is None:
            return None
        if missing.code is Code.VERSION_MISMATCH or hw.now() >= until:
            return missing
        deadline.check("the driver and the vGPU manager")
        listener.waiting(_awaited(missing), min(until, deadline.at_s))
        hw.wait_for_event(min(_POLL_S, deadline.remaining(_POLL_S)))


def wait_for_unit(
    hw: Hardware, unit: str, limit_s: float, deadline: Deadline, listener: Listener
) -> UnitState:
    """The unit's state once it is active, or when ``limit_s`` is over. Raises RunEnded."""
    until = hw.now() + limit_s
    while True:
        state = hw.unit_state(unit)
        if state.is_active or hw.now() >= until:
            return state
        deadline.check(unit)
        listener.waiting(f"{unit} ({state.active_state})", min(until, deadline.at_s))
        hw.sleep(min(_POLL_S, deadline.remaining(_POLL_S)))


def _awaited(missing: Finding) -> str:
    """The same words as long as it is the same thing, so that it is not told over and over."""
    unit = missing.fact("unit")
    return f"{unit} to be up" if unit else f"the driver ({missing.message})"


def _missing(hw: Hardware, *, waited_s: float) -> Finding | None:
    driver = hw.driver_info()
    if driver.problem is not None:
        return driver.problem
    manager = hw.unit_state(VGPU_MGR)
    if manager.exists and not manager.is_active:
        return _down(hw, manager, waited_s)
    # vgpud writes the types and exits at once, so is-active says nothing: look at its result.
    vgpud = hw.unit_state(VGPUD)
    if vgpud.exists and not vgpud.is_active and not (vgpud.ran and vgpud.result == "success"):
        return _down(hw, vgpud, waited_s)
    fabric = hw.unit_state(FABRIC_MANAGER)
    if fabric.exists and fabric.active_state == "activating":
        return _down(hw, fabric, waited_s)
    return None


def _down(hw: Hardware, unit: UnitState, waited_s: float) -> Finding:
    words = [line.text for line in hw.kernel_log() if "vgpu" in line.text.lower()]
    return Finding.of(
        Code.VGPU_MANAGER_DOWN,
        unit=unit.name.removesuffix(".service"),
        waited_s=f"{waited_s:.0f}",
        state=f"{unit.active_state}/{unit.sub_state}, result {unit.result}",
        log=words[-1] if words else "none in the kernel log",
    )
