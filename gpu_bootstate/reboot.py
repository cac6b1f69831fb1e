"""The last resort, where the configuration allows it: one reboot of the node for what is wanted.

Only for what a reboot is known to cure, only while nobody uses any GPU of the node, and never again
for the same configuration: what one reboot did not cure, the next would not either, and a node that
reboots over and over is worse than one that is degraded. The memory of it is on the disk before the
reboot is asked for; where it cannot be written, there is none.
"""

from __future__ import annotations

import contextlib

from gpu_bootstate.files import read_json, write_json
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.in_use import users
from gpu_bootstate.model import DesiredState, RebootPolicy, RunOutcome
from gpu_bootstate.paths import Paths
from gpu_bootstate.reasons import Code, Condition, Finding

# Whose remedy is a reboot and nothing less (`reasons`). Not a driver that is missing or does not
# fit its library: that needs a person first.
CURED = frozenset(
    {
        Code.GPU_HUNG,
        Code.GPU_LOST,
        Code.GPU_NEEDS_REBOOT,
        Code.MIG_MODE_UNREADABLE,
        Code.PF_BIND_FAILED,
        Code.RESET_FAILED,
        Code.RESET_UNSUPPORTED,
        Code.TOOL_HUNG,
    }
)


def reboot_if_allowed(
    hw: Hardware, paths: Paths, desired: DesiredState, outcome: RunOutcome
) -> Finding | None:
    """What came of it, or None where there is no reason for a reboot."""
    if desired.policy.reboot is not RebootPolicy.ONCE:
        return None
    causes = [
        finding
        for gpu in outcome.gpus
        if gpu.condition is not Condition.CONVERGED
        for finding in gpu.findings[:1]
        if finding.code in CURED
    ]
    if not causes:
        return None
    why = causes[0].message.rstrip(".")
    reboots = (read_json(paths.reboots) or {}).get("reboots")
    done = reboots if isinstance(reboots, dict) else {}
    if desired.digest in done:
        return Finding.of(Code.REBOOTED_BEFORE, why=why, path=str(paths.reboots))
    if user := _user(hw):
        return Finding.of(Code.REBOOT_HELD, why=why, user=user)
    try:
        write_json(paths.reboots, {"reboots": {**done, desired.digest: hw.boot_id()}})
        hw.reboot()
    except (OSError, HardwareError) as err:
        return Finding.of(Code.REBOOT_FAILED, why=why, detail=str(err))
    return Finding.of(Code.REBOOTING, why=why)


def _user(hw: Hardware) -> str | None:
    """Who would lose by a reboot, on whatever GPU of the node; also when that cannot be told."""
    for pci in hw.pfs():
        try:
            for holder in users(hw.holders(pci.bdf)):
                return f"{holder.vm or holder.name} (pid {holder.pid}) on {pci.bdf}"
        except HardwareError as err:
            return f"who knows who, on {pci.bdf}, whose holders cannot be read ({err})"
        # A VM in a namespace that we do not see; a GPU that NVML cannot reach runs none.
        with contextlib.suppress(HardwareError):
            for active in hw.facts(pci.bdf).active_vgpus:
                return f"VM {active.vm_id} on {pci.bdf}"
    return None
