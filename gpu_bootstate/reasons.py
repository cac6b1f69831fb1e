"""Everything that can go wrong or is worth saying: sentence, cause, remedy, condition.

One table. The report, the journal, `status` and the documentation read it; nothing else in the
package makes up sentences about failures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from string import Formatter


class Condition(Enum):
    """How well it went. How far it got is another matter (report: progress)."""

    CONVERGED = "converged"
    DEGRADED = "degraded"
    REFUSED = "refused"
    BAD_CONFIG = "bad-config"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    FAILED = "failed"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]

    @classmethod
    def of_all(cls, parts: Iterable[Condition], *, changed: bool) -> Condition:
        """What the node comes to, from what its GPUs came to; ``changed``: any call was made.

        Some good and some not is DEGRADED, but a run that only refused, and changed nothing,
        says REFUSED: whoever asked for it must know that it was for nothing.
        """
        seen = set(parts)
        bad = seen - {cls.CONVERGED}
        if not bad:
            return cls.CONVERGED
        if bad == {cls.REFUSED} and not changed:
            return cls.REFUSED
        if cls.CONVERGED in seen:
            return cls.DEGRADED
        return bad.pop() if len(bad) == 1 else cls.FAILED


_EXIT_CODES = {
    Condition.CONVERGED: 0,
    Condition.FAILED: 1,
    Condition.DEGRADED: 2,
    Condition.REFUSED: 3,
    Condition.BAD_CONFIG: 4,
    Condition.UNAVAILABLE: 5,
    Condition.DEADLINE: 6,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One row. ``sentence`` says what happened, ``cause`` why it happens, ``remedy`` what to do.

    All three are templates over the facts of a Finding. ``condition`` is what a GPU (or the
    node) comes to when this ends its run; CONVERGED marks notices that end nothing.
    """

    sentence: str
    cause: str
    remedy: str
    condition: Condition

    @property
    def fields(self) -> frozenset[str]:
        """The facts that the templates name."""
        texts = (self.sentence, self.cause, self.remedy)
        return frozenset(
            name for text in texts for _, name, _, _ in Formatter().parse(text) if name
        )


class Code(Enum):
    """Identifiers; stable, since people write alert rules on them."""

    # configuration
    CONFIG_INVALID = "config-invalid"
    GPU_MISSING = "gpu-missing"
    GPU_COUNT = "gpu-count"
    GPU_OVERLAP = "gpu-overlap"
    GPU_MOVED = "gpu-moved"
    PROFILE_UNKNOWN = "profile-unknown"
    PROFILE_RESOLVED = "profile-resolved"
    LAYOUT_IMPOSSIBLE = "layout-impossible"
    TYPE_UNKNOWN = "type-unknown"
    TYPE_AMBIGUOUS = "type-ambiguous"
    TYPE_NEEDS_MIG_OFF = "type-needs-mig-off"
    TYPE_NO_INSTANCE = "type-no-instance"
    TOO_MANY_VGPUS = "too-many-vgpus"
    NO_SUCH_VF = "no-such-vf"
    MIXED_SIZES = "mixed-sizes"
    NO_MIG = "no-mig"
    # driver, managers, neighbours
    DRIVER_NOT_LOADED = "driver-not-loaded"
    VERSION_MISMATCH = "version-mismatch"
    NVML_UNAVAILABLE = "nvml-unavailable"
    NOT_VGPU_HOST = "not-vgpu-host"
    VGPU_MANAGER_DOWN = "vgpu-manager-down"
    TYPES_NOT_LISTED = "types-not-listed"
    FABRIC_MANAGER_DOWN = "fabric-manager-down"
    FABRIC_MODE = "fabric-mode"
    OTHER_ACTOR = "other-actor"
    # a GPU as such
    GPU_NOT_IN_NVML = "gpu-not-in-nvml"
    GPU_LOST = "gpu-lost"
    GPU_UNREADABLE = "gpu-unreadable"
    GPU_HUNG = "gpu-hung"
    GPU_NEEDS_REBOOT = "gpu-needs-reboot"
    ON_OTHER_DRIVER = "on-other-driver"
    PF_STRANDED = "pf-stranded"
    PF_BOUND_BACK = "pf-bound-back"
    PF_BIND_FAILED = "pf-bind-failed"
    LOCK_LEFT = "unbind-lock-left"
    IN_USE = "in-use"
    HELD = "held"
    MIG_MODE_UNREADABLE = "mig-mode-unreadable"
    PERMISSION = "permission"
    # MIG mode
    MIG_MODE_PENDING = "mig-mode-pending"
    MIG_MODE_FAILED = "mig-mode-failed"
    RESET_REFUSED = "reset-refused"
    RESET_UNSUPPORTED = "reset-unsupported"
    RESET_INEFFECTIVE = "reset-ineffective"
    RESET_FAILED = "reset-failed"
    # VFs
    TOOL_MISSING = "tool-missing"
    TOOL_HUNG = "tool-hung"
    VFS_NOT_CREATED = "vfs-not-created"
    VFS_TOO_FEW = "vfs-too-few"
    VFS_NOT_REMOVED = "vfs-not-removed"
    VFS_NO_RESOURCES = "vfs-no-resources"
    VFS_NO_TYPES = "vfs-no-types"
    VFS_ON_VFIO_PCI = "vfs-on-vfio-pci"
    VFS_CYCLED = "vfs-cycled"
    UNBIND_LOCK_BUSY = "unbind-lock-busy"
    SIBLING_DRIVERLESS = "sibling-driverless"
    SIBLING_UNREADABLE = "sibling-unreadable"
    NO_SRIOV = "no-sriov"
    NON_SRIOV_MODE = "non-sriov-mode"
    # instances and types
    INSTANCE_CREATE_FAILED = "instance-create-failed"
    INSTANCE_IN_THE_WAY = "instance-in-the-way"
    INSTANCE_DESTROY_FAILED = "instance-destroy-failed"
    TYPE_WRITE_FAILED = "type-write-failed"
    TYPE_NOT_APPLIED = "type-not-applied"
    TYPE_NOT_CREATABLE = "type-not-creatable"
    TYPE_NO_GPU_INSTANCE = "type-no-gpu-instance"
    TYPE_WRONG_INSTANCE = "type-wrong-instance"
    MIXED_SIZE_FAILED = "mixed-size-failed"
    FEWER_THAN_BEFORE = "fewer-than-before"
    # the run
    DEADLINE = "deadline"
    INTERRUPTED = "interrupted"
    NOT_VERIFIED = "not-verified"
    UNIT_NOT_STOPPED = "unit-not-stopped"
    REBOOTING = "rebooting"
    REBOOTED_BEFORE = "rebooted-before"
    REBOOT_HELD = "reboot-held"
    REBOOT_FAILED = "reboot-failed"
    UNIT_NOT_STARTED = "unit-not-started"
    PERSISTENCE_NOT_LOWERED = "persistence-not-lowered"
    PERSISTENCE_NOT_RESTORED = "persistence-not-restored"
    RETRIED = "retried"
    GATE_FAILED = "gate-failed"
    GATE_UNGUARDED = "gate-unguarded"
    NODE_UNREADABLE = "node-unreadable"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason code with the facts of one occurrence, ``pf`` among them where there is one."""

    code: Code
    facts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, code: Code, **facts: object) -> Finding:
        """Raises TypeError when a fact that the sentence needs is missing."""
        missing = REASONS[code].fields - facts.keys()
        if missing:
            raise TypeError(f"{code.value} needs the facts {sorted(missing)}")
        return cls(code, tuple((name, str(value)) for name, value in facts.items()))

    def fact(self, name: str) -> str | None:
        return dict(self.facts).get(name)

    @property
    def message(self) -> str:
        return REASONS[self.code].sentence.format_map(dict(self.facts))

    @property
    def cause(self) -> str:
        return REASONS[self.code].cause.format_map(dict(self.facts))

    @property
    def remedy(self) -> str:
        return REASONS[self.code].remedy.format_map(dict(self.facts))

    @property
    def condition(self) -> Condition:
        return REASONS[self.code].condition


_CONV, _FAIL, _REFU = Condition.CONVERGED, Condition.FAILED, Condition.REFUSED
_CONF, _UNAV, _DEAD = Condition.BAD_CONFIG, Condition.UNAVAILABLE, Condition.DEADLINE

REASONS: dict[Code, Reason] = {
    # ---------------------------------------------------------------- configuration
    Code.CONFIG_INVALID: Reason(
        "The configuration has {count} problem(s); the first: {first}",
        "A key, a value or a geometry in the configuration cannot be right.",
        "Correct the file, then run `gpu-bootstate check`.",
        _CONF,
    ),
    Code.GPU_MISSING: Reason(
        "The configuration names {wanted}, which this node does not have ({nearest}).",
        "The card was moved, replaced or fell off the bus, or the address is misspelt.",
        "Correct the entry, or set `on-missing: degrade` to bring the other GPUs up without it.",
        _CONF,
    ),
    Code.GPU_COUNT: Reason(
        "The configuration expects {wanted} cards of device {device}; {found} are there ({slots}).",
        "A card is missing or there are more than the entry says.",
        "Look at the slots that are empty, or correct `count:`.",
        _CONF,
    ),
    Code.GPU_OVERLAP: Reason(
        "{pf} is matched by {first} and by {second}.",
        "Two entries name the same GPU, so it is not clear what it is to be.",
        "Narrow one of the two matches.",
        _CONF,
    ),
    Code.GPU_MOVED: Reason(
        "{pf} holds a card that this configuration was not made for; the card with serial {serial} "
        "that was there is now at {now}.",
        "Cards were moved between slots or the firmware renumbered the bus.",
        "Change the entry to {now}, or match by serial.",
        _CONF,
    ),
    Code.PROFILE_UNKNOWN: Reason(
        "{pf} has no MIG profile {got} (it has: {available}).",
        "The profile belongs to another GPU model or is misspelt.",
        "Use {nearest}.",
        _CONF,
    ),
    Code.PROFILE_RESOLVED: Reason(
        "{pf}: MIG profile {got} is taken as {used}, the only one of that shape on this GPU.",
        "Drivers round the memory of a profile differently.",
        "Write {used} to make this notice go away.",
        _CONV,
    ),
    Code.LAYOUT_IMPOSSIBLE: Reason(
        "{pf} has no room for {misfit} in the layout {layout}.",
        "GPU instances have fixed placements; {why}.",
        "The nearest layout that fits: {nearest}.",
        _CONF,
    ),
    Code.TYPE_UNKNOWN: Reason(
        "{pf} offers no vGPU type {got}.",
        "The type belongs to another GPU model, is not in this driver, or is misspelt.",
        "Use {nearest}.",
        _CONF,
    ),
    Code.TYPE_AMBIGUOUS: Reason(
        "{pf}: vGPU type {got} can mean {names}.",
        "Several types of this GPU end in that word.",
        "Write the whole name.",
        _CONF,
    ),
    Code.TYPE_NEEDS_MIG_OFF: Reason(
        "{pf}: vGPU type {type} is time-sliced and needs MIG off, but {other}.",
        "A GPU is either divided by MIG or shared by time as a whole.",
        "Use one kind of type in the profile, and `mig:` only with MIG-backed ones.",
        _CONF,
    ),
    Code.TYPE_NO_INSTANCE: Reason(
        "{pf}: {wanted} vGPUs of type {type} are asked for, but there is room for {room}: "
        "the type needs GPU instances of profile {profile}.",
        "A MIG-backed type lives only on an instance of its exact profile, media and graphics "
        "flags included.",
        "Ask for more instances of {profile} or fewer vGPUs of {type}.",
        _CONF,
    ),
    Code.TOO_MANY_VGPUS: Reason(
        "{pf}: {wanted} vGPUs are asked for, but {limit}.",
        "Each vGPU takes a VF and its framebuffer.",
        "Ask for fewer, or for a smaller type.",
        _CONF,
    ),
    Code.NO_SUCH_VF: Reason(
        "{pf} has no VF {index}; its {count} VFs are counted from 0.",
        "The profile pins a vGPU to a VF that this card cannot have.",
        "Use a lower VF index, or give a count.",
        _CONF,
    ),
    Code.MIXED_SIZES: Reason(
        "{pf}: vGPUs of different framebuffer sizes ({sizes}) are asked for without mixed-size.",
        "In equal-size mode the first vGPU fixes the size for the whole GPU or GPU instance.",
        "Set `mixed-size: true` in the profile, or use one size.",
        _CONF,
    ),
    Code.NO_MIG: Reason(
        "{pf} ({name}) has no MIG, but {got} needs it.",
        "This GPU model cannot be partitioned.",
        "Use time-sliced vGPU types on it.",
        _CONF,
    ),
    # ---------------------------------------------------------------- driver, managers
    Code.DRIVER_NOT_LOADED: Reason(
        "The nvidia kernel module is not loaded.",
        "The driver is not installed for this kernel, or its load failed ({detail}).",
        "Look at `journalctl -k -g nvidia`, install the vGPU host driver for this kernel, reboot.",
        _UNAV,
    ),
    Code.VERSION_MISMATCH: Reason(
        "The kernel module is version {module}, the NVML library {library}: NVML refuses to work.",
        "The driver was upgraded and the old module is still loaded.",
        "Reload the driver with every VM off, or reboot.",
        _UNAV,
    ),
    Code.NVML_UNAVAILABLE: Reason(
        "NVML does not answer: {detail}.",
        "The driver is still starting, or its installation is incomplete.",
        "Run `nvidia-smi`; if it fails too, repair the driver.",
        _UNAV,
    ),
    Code.NOT_VGPU_HOST: Reason(
        "{pf} ({name}) is not run by a vGPU host driver, so it has no VFs and no vGPU types.",
        "This is a guest with a passed-through GPU, or the data centre driver is installed instead "
        "of the vGPU host driver: there is no unbindLock and NVML reports no host vGPU mode.",
        "Install the vGPU host (vgpu-kvm) driver on the host; in a guest this tool has no work.",
        _UNAV,
    ),
    Code.VGPU_MANAGER_DOWN: Reason(
        "{unit} is not up after {waited_s} s ({state}).",
        "VFs and vGPU types need the vGPU manager; on NVLink systems it starts late. "
        "Its last words: {log}",
        "Look at `journalctl -u {unit}`, restart it, then "
        "`systemctl reload-or-restart gpu-bootstate`.",
        _UNAV,
    ),
    Code.TYPES_NOT_LISTED: Reason(
        "{pf} ({name}) is run by a vGPU host driver that lists no vGPU types for it.",
        "nvidia-vgpud has not told the driver the types of this GPU, or this card has none.",
        "Restart nvidia-vgpud, then `systemctl reload-or-restart gpu-bootstate`.",
        _UNAV,
    ),
    Code.FABRIC_MANAGER_DOWN: Reason(
        "{pf} needs a reset, which this board allows only while nvidia-fabricmanager runs; it is "
        "{state} after {waited_s} s.",
        "On A100 boards with NVSwitch a single GPU can be reset only under Fabric Manager.",
        "Start nvidia-fabricmanager, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.FABRIC_MODE: Reason(
        "Fabric Manager runs with FABRIC_MODE={mode}, but {pf} is to carry whole-card vGPUs.",
        "Without MIG, vGPUs on NVSwitch boards need an activated partition (FABRIC_MODE 1 or 2), "
        "else CUDA fails in the guest with 802.",
        "Set FABRIC_MODE=2 in fabricmanager.cfg and restart nvidia-fabricmanager.",
        _REFU,
    ),
    Code.OTHER_ACTOR: Reason(
        "Other software changes the same GPUs: {kind} {name} ({detail}).",
        "Two programs that call sriov-manage destroy each other's work, and can leave a card "
        "without a driver.",
        "Disable {name}, or let it do the whole job instead of this unit.",
        _REFU,
    ),
    # ---------------------------------------------------------------- a GPU as such
    Code.GPU_NOT_IN_NVML: Reason(
        "{pf} is on the PCI bus with driver {driver}, but NVML does not list it ({detail}).",
        "The driver failed to take the card, or lost it.",
        "Look at `journalctl -k -g NVRM`; reseat or replace the card if it stays away.",
        _FAIL,
    ),
    Code.GPU_LOST: Reason(
        "{pf} is lost: the driver no longer reaches it ({operation}).",
        "The GPU fell off the PCI bus.",
        "Power-cycle the node; if it happens again, have the card checked.",
        _FAIL,
    ),
    Code.GPU_UNREADABLE: Reason(
        "{pf}: {operation} failed: {detail}.",
        "The driver answered a read with an error.",
        "Run `nvidia-smi -q -i {pf}`; look at `journalctl -k -g NVRM`.",
        _FAIL,
    ),
    Code.GPU_HUNG: Reason(
        "{pf}: {operation} did not come back within {waited_s} s; the GPU is left alone.",
        "A sick GPU can block a driver call for ever.",
        "Look at `journalctl -k -g 'NVRM|Xid'`; the node probably needs a reboot.",
        _FAIL,
    ),
    Code.GPU_NEEDS_REBOOT: Reason(
        "{pf}: the driver says that this GPU needs: {action}. It is left alone.",
        "The driver's own recovery action (NVML field 230) goes beyond what may be done here.",
        "Drain the node and do that; then this unit brings the GPU up at boot.",
        _FAIL,
    ),
    Code.ON_OTHER_DRIVER: Reason(
        "{pf} is bound to {driver}, not to nvidia, and is left alone.",
        "Somebody passes the whole card through, or bound it by hand.",
        "Bind it to nvidia, or set `mode: passthrough` for it.",
        _REFU,
    ),
    Code.PF_STRANDED: Reason(
        "{pf} is left on {driver} and NVML does not see it.",
        "sriov-manage failed half-way.",
        "Run `gpu-bootstate apply` again; if it stays so, reboot.",
        _FAIL,
    ),
    Code.PF_BOUND_BACK: Reason(
        "{pf} was on {driver} and has been bound back to nvidia.",
        "An earlier sriov-manage failed half-way or was killed.",
        "Nothing to do.",
        _CONV,
    ),
    Code.PF_BIND_FAILED: Reason(
        "{pf} could not be bound back to nvidia (it is on {driver}): {detail}.",
        "The driver refused the card.",
        "Look at `journalctl -k -g NVRM`; reboot the node if the card stays driverless.",
        _FAIL,
    ),
    Code.LOCK_LEFT: Reason(
        "{pf}: unbindLock was held though nothing was using it, and has been released.",
        "A run of sriov-manage was killed between taking and releasing it.",
        "Nothing to do.",
        _CONV,
    ),
    Code.IN_USE: Reason(
        "{pf} is in use by {holder}, so nothing was changed: {wanted}.",
        "The change would take the GPU away from a running VM or process.",
        "Stop {holder}, then `systemctl reload-or-restart gpu-bootstate`.",
        _REFU,
    ),
    Code.HELD: Reason(
        "{pf} is held open by {holder}, so nothing was changed: {wanted}.",
        "VFs, MIG mode and reset need every client off the GPU.",
        "Stop it, or list its unit under `policy: holders: {{stop: [...]}}`, then "
        "`systemctl reload-or-restart gpu-bootstate`.",
        _REFU,
    ),
    Code.MIG_MODE_UNREADABLE: Reason(
        "{pf}: the driver does not say whether MIG mode is on; nothing was changed.",
        "Acting on a guess could wipe a working layout.",
        "Run `nvidia-smi -q -i {pf}`; reboot if it fails too.",
        _FAIL,
    ),
    Code.PERMISSION: Reason(
        "{pf}: no permission for: {operation}.",
        "Changing GPUs needs root, and access to /dev/nvidia* and /sys.",
        "Run as root; in a unit of your own look at its hardening options.",
        _FAIL,
    ),
    # ---------------------------------------------------------------- MIG mode
    Code.MIG_MODE_PENDING: Reason(
        "{pf}: MIG mode was set to {wanted} but stays pending ({detail}).",
        "Something still held the GPU, or the mode needs a reset.",
        "Find the holder (`fuser -v /dev/nvidia*`), stop it, "
        "`systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.MIG_MODE_FAILED: Reason(
        "{pf}: MIG mode could not be set to {wanted}: {detail}.",
        "The driver refused the change.",
        "Look at `journalctl -k -g NVRM`.",
        _FAIL,
    ),
    Code.RESET_REFUSED: Reason(
        "{pf}: the reset was refused because {holder} has the GPU open.",
        "A reset needs every client off the GPU.",
        "Stop it, or list its unit under `policy: holders: {{stop: [...]}}`.",
        _FAIL,
    ),
    Code.RESET_UNSUPPORTED: Reason(
        "{pf}: this GPU cannot be reset from here ({detail}).",
        "In a guest, or on this board, only the hypervisor or a reboot resets the GPU.",
        "Reboot the node, or reset the GPU from the hypervisor.",
        _FAIL,
    ),
    Code.RESET_INEFFECTIVE: Reason(
        "{pf}: the reset reported success, but MIG mode is still {current} with {pending} pending.",
        "The reset did not take effect.",
        "Reboot the node; report it to the vendor if it happens again.",
        _FAIL,
    ),
    Code.RESET_FAILED: Reason(
        "{pf}: the reset failed with exit code {exit_code}: {detail}.",
        "nvidia-smi could not reset the GPU.",
        "Look at `journalctl -k -g NVRM`; reboot the node if the GPU stays away.",
        _FAIL,
    ),
    # ---------------------------------------------------------------- VFs
    Code.TOOL_MISSING: Reason(
        "{path} cannot be run: {detail}.",
        "It comes with the {package}; the data centre driver does not have it.",
        "Install the {package}, or set the path in `policy: sriov-manage:`.",
        _UNAV,
    ),
    Code.TOOL_HUNG: Reason(
        "{pf}: {tool} did not end within {waited_s} s and was stopped.",
        "The driver blocked it, usually because something holds the GPU.",
        "Look at `journalctl -k -g NVRM`; the node may need a reboot.",
        _FAIL,
    ),
    Code.VFS_NOT_CREATED: Reason(
        "{pf}: sriov-manage was run {attempts} times and left {found} of {wanted} VFs: {detail}.",
        "Its exit status is not proof; the vGPU manager may not be ready.",
        "Look at `journalctl -k -g 'NVRM|SR-IOV'`, then "
        "`systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.VFS_TOO_FEW: Reason(
        "{pf}: {found} of {wanted} VFs came up.",
        "The kernel or the firmware gave fewer than the card can have.",
        "Look at `journalctl -k -g SR-IOV`; `policy: allow-fewer-vfs: true` accepts them if enough "
        "for the vGPUs asked for.",
        _FAIL,
    ),
    Code.VFS_NOT_REMOVED: Reason(
        "{pf}: sriov-manage -d left {found} VFs: {detail}.",
        "Something holds the GPU or a VF.",
        "Find the holder, stop it, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.VFS_NO_RESOURCES: Reason(
        "{pf}: the kernel could not place the VFs: {log}",
        "The firmware did not reserve address space or bus numbers for them.",
        "In the firmware enable SR-IOV, ARI and above-4G decoding (a larger MMIO window); "
        "else boot with pci=realloc.",
        _FAIL,
    ),
    Code.VFS_NO_TYPES: Reason(
        "{pf}: {missing} of its {wanted} VFs offer no vGPU types after {waited_s} s.",
        "The vGPU manager has not registered them.",
        "Restart nvidia-vgpu-mgr, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.VFS_ON_VFIO_PCI: Reason(
        "{pf}: VFs are bound to {driver} ({vfs}), so they show no vGPU types.",
        "With vendor VFIO the VFs stay on nvidia; somebody bound them away. Single VFs cannot be "
        "bound back safely.",
        "Remove what binds them (libvirt `managed='no'`, driverctl, a vfio-pci ids= option), then "
        "with all VMs off run `sriov-manage -d {pf}` and "
        "`systemctl reload-or-restart gpu-bootstate`.",
        _REFU,
    ),
    Code.VFS_CYCLED: Reason(
        "{pf}: the VFs offered no vGPU types and were switched off and on once.",
        "Their registration with the vGPU manager had failed.",
        "Nothing to do.",
        _CONV,
    ),
    Code.UNBIND_LOCK_BUSY: Reason(
        "{pf}: sriov-manage could not get the unbindLock in {attempts} tries; held by {holder}.",
        "Any NVML user blocks it: DCGM, an exporter, an nvidia-smi loop.",
        "Stop it, or list its unit under `policy: holders: {{stop: [...]}}`.",
        _FAIL,
    ),
    Code.SIBLING_DRIVERLESS: Reason(
        "{pf}: VFs cannot be switched while {sibling}, a card of the same model, has no driver.",
        "sriov-manage would capture that card for pci-pf-stub and leave it there.",
        "Bind {sibling} to its driver, or put it in the configuration so that it is bound here; "
        "if it is there, see what kept it from being bound.",
        _FAIL,
    ),
    Code.SIBLING_UNREADABLE: Reason(
        "{pf}: VFs cannot be switched while {sibling}, a card of the same model, cannot be read "
        "({detail}).",
        "If it has no driver, sriov-manage would capture it for pci-pf-stub and leave it there; it "
        "is not in the configuration, so it must not be touched.",
        "Look at `lspci -s {sibling}` and `journalctl -k`; repair or remove the card.",
        _FAIL,
    ),
    Code.NO_SRIOV: Reason(
        "{pf} ({name}) shows no SR-IOV capability.",
        "The firmware hides it, or this is a guest.",
        "Enable SR-IOV and VT-d/AMD-Vi in the firmware.",
        _FAIL,
    ),
    Code.NON_SRIOV_MODE: Reason(
        "{pf} ({name}) has host vGPU mode {mode}, not SR-IOV; nothing was changed.",
        "Its vGPUs are mdevs on the PF itself, which this tool does not manage.",
        "Take the GPU out of the configuration and use mdevctl for it.",
        _FAIL,
    ),
    # ---------------------------------------------------------------- instances and types
    Code.INSTANCE_CREATE_FAILED: Reason(
        "{pf}: no GPU instance {profile} could be created at {placement}: {detail}. There now: "
        "{present}.",
        "The driver refused a placement that it had offered; a stale instance may be in the way.",
        "Run `gpu-bootstate apply` again; if it stays so, reboot the node.",
        _FAIL,
    ),
    Code.INSTANCE_IN_THE_WAY: Reason(
        "{pf}: {profile} finds no room while these instances stay: {blockers}.",
        "They are in use and cannot be moved.",
        "Stop what uses them, then `systemctl reload-or-restart gpu-bootstate`.",
        _REFU,
    ),
    Code.INSTANCE_DESTROY_FAILED: Reason(
        "{pf}: GPU instance {gi_id} ({profile}) could not be destroyed: {detail}; "
        "held by {holder}.",
        "Something has it open: a process on it, or a daemon that watches it.",
        "Stop it, then `systemctl reload-or-restart gpu-bootstate`.",
        _REFU,
    ),
    Code.TYPE_WRITE_FAILED: Reason(
        "{pf}: vGPU type {type} could not be set on {vf}: {detail}. {log}",
        "The driver refused the type.",
        "Look at `journalctl -k -g NVRM`.",
        _FAIL,
    ),
    Code.TYPE_NOT_APPLIED: Reason(
        "{pf}: vGPU type {type} was written to {vf}, but it reads {found}.",
        "The driver accepted the write and did not keep it.",
        "Look at `journalctl -k -g NVRM`, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.TYPE_NOT_CREATABLE: Reason(
        "{pf}: {vf} does not offer vGPU type {type} now (it offers: {offered}).",
        "The GPU is full, or vGPUs of another size are on it.",
        "Look at `gpu-bootstate status`; something else may have set types on this GPU.",
        _FAIL,
    ),
    Code.TYPE_NO_GPU_INSTANCE: Reason(
        "{pf}: the driver refused {type} on {vf} (status 0x38): MIG is on and no GPU instance "
        "takes it.",
        "The instance was destroyed between its creation and this write.",
        "Run `gpu-bootstate apply` again.",
        _FAIL,
    ),
    Code.TYPE_WRONG_INSTANCE: Reason(
        "{pf}: {vf} got GPU instance {found}, which is not of profile {wanted}.",
        "The driver chose another instance than the type needs.",
        "Run `gpu-bootstate apply` again.",
        _FAIL,
    ),
    Code.MIXED_SIZE_FAILED: Reason(
        "{pf}: mixed-size mode could not be turned {wanted}: {detail}.",
        "It needs VFs on and no vGPU, and a GPU that supports it.",
        "Use one framebuffer size on this GPU.",
        _FAIL,
    ),
    Code.FEWER_THAN_BEFORE: Reason(
        "{pf}: {type} goes from {before} to {after}.",
        "The configuration asks for fewer than there are.",
        "Nothing to do if that is what you want.",
        _CONV,
    ),
    # ---------------------------------------------------------------- the run
    Code.DEADLINE: Reason(
        "The deadline of {limit_s} s passed while waiting for {waiting_for}.",
        "Something took longer than the policy allows.",
        "Look at what was waited for; raise `policy: deadline:` if it is only slow.",
        _DEAD,
    ),
    Code.INTERRUPTED: Reason(
        "The run was asked to stop ({signal}) in phase {phase}.",
        "Somebody stopped the unit, or systemd's start limit passed.",
        "Run `systemctl restart gpu-bootstate`; what was done is kept and seen.",
        _FAIL,
    ),
    Code.NOT_VERIFIED: Reason(
        "{pf}: after phase {phase} this is still to be done: {still}.",
        "What was changed did not stay changed; somebody else may be acting on this GPU.",
        "Look for other software on the GPU, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.UNIT_NOT_STOPPED: Reason(
        "{unit} did not stop within {waited_s} s, so GPUs that it holds were not changed.",
        "It hangs, or something starts it again.",
        "Stop it by hand, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.REBOOTING: Reason(
        "The node is being rebooted, since only that can help: {why}.",
        "The policy `reboot: once` allows one for each configuration, and nobody uses a GPU.",
        "Wait for the next boot; this configuration will not reboot the node again.",
        _FAIL,
    ),
    Code.REBOOTED_BEFORE: Reason(
        "The node is not rebooted again for this configuration, though only that may help: {why}.",
        "{path} says that it has been; what one reboot did not cure, the next would not either.",
        "Repair what is named; then change the configuration, or remove {path}, to allow another.",
        _FAIL,
    ),
    Code.REBOOT_HELD: Reason(
        "The node is not rebooted, though only that could help ({why}): in use by {user}.",
        "A reboot would end what runs on the GPUs of this node.",
        "Move or stop it, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.REBOOT_FAILED: Reason(
        "The node could not be rebooted, though only that could help ({why}): {detail}.",
        "It is asked for only once it is on the disk that it was, so that it stays one.",
        "Reboot the node by hand, once nobody uses a GPU.",
        _FAIL,
    ),
    Code.UNIT_NOT_STARTED: Reason(
        "{unit} was stopped for the change and could not be started again: {detail}.",
        "systemd refused the job.",
        "Run `systemctl start {unit}`.",
        _FAIL,
    ),
    Code.PERSISTENCE_NOT_LOWERED: Reason(
        "{pf}: persistence mode could not be lowered: {detail}.",
        "nvidia-persistenced did not let go of the GPU.",
        "List nvidia-persistenced.service under `policy: holders: {{stop: [...]}}`.",
        _FAIL,
    ),
    Code.PERSISTENCE_NOT_RESTORED: Reason(
        "{pf}: persistence mode could not be switched on again: {detail}.",
        "The daemon may not have taken the card back after its driver was re-attached.",
        "Run `nvidia-smi -pm 1 -i {pf}`.",
        _CONV,
    ),
    Code.RETRIED: Reason(
        "{pf}: {step}: attempt {attempt} failed ({detail}); tried again.",
        "A transient failure that the vendor documents.",
        "Nothing to do.",
        _CONV,
    ),
    Code.GATE_FAILED: Reason(
        "The gate cannot be kept: {path}: {detail}.",
        "The file system of the gate's files refuses, or their directory is not ours alone.",
        "Repair the path, then `systemctl reload-or-restart gpu-bootstate`.",
        _FAIL,
    ),
    Code.GATE_UNGUARDED: Reason(
        "Nobody holds the gate's files: {unit} is {state}.",
        "A gate file that somebody deletes does not come back while that unit is down.",
        "See `systemctl status {unit}`, then `systemctl restart gpu-bootstate-regate.path`.",
        _CONV,
    ),
    Code.NODE_UNREADABLE: Reason(
        "The host does not answer: {operation}: {detail}.",
        "What every GPU hangs on, systemd or the kernel's list of devices, gives no answer.",
        "Try that by hand (`systemctl status`, `ls /sys/bus/pci/devices`) and see the kernel log; "
        "then start gpu-bootstate again. No GPU was changed after it.",
        _FAIL,
    ),
    Code.INTERNAL: Reason(
        "gpu-bootstate itself failed: {detail}.",
        "A fault in this program. The gate stays closed.",
        "Report it with the output of `gpu-bootstate status --format json`.",
        _FAIL,
    ),
}
