"""(targets, observed node, policy) -> Plan. Pure: no I/O, no clock, the same answer every time.

The plan is made again after each phase from what is then there, so it need not guess what a
change leaves behind; it only has to be right about what comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_bootstate.difference import Refused, steps_between
from gpu_bootstate.in_use import PERSISTENCED, blocking_clients, is_held_by_persistence, users
from gpu_bootstate.model import (
    PF_DRIVER,
    STUB_DRIVER,
    Actor,
    Bdf,
    BindDriver,
    DisableVfs,
    EnableVfs,
    GpuFacts,
    GpuPlan,
    GpuTarget,
    HostVgpuMode,
    LowerPersistence,
    Mode,
    ObservedGpu,
    ObservedNode,
    OnConflict,
    Plan,
    Policy,
    RecoveryAction,
    ReleaseUnbindLock,
    Step,
)
from gpu_bootstate.reasons import Code, Finding


def make_plan(
    node: ObservedNode,
    policy: Policy,
    *,
    targets: Sequence[GpuTarget],
    deferred: Sequence[tuple[Bdf, str]] = (),
    missing: Sequence[Finding] = (),
    notes: Sequence[Finding] = (),
    unclaimed: Sequence[Bdf] = (),
) -> Plan:
    """What brings every target about.

    ``deferred`` are GPUs, with the name of their profile, that the config names and whose target
    cannot be known before they can be read again. Targets and deferred GPUs are in ``node``.
    """
    by_pf = {gpu.pf: gpu for gpu in node.gpus}
    gpus = [_plan_target(node, by_pf[target.pf], target, policy) for target in targets]
    gpus += [_plan_deferred(node, by_pf[pf], profile) for pf, profile in deferred]
    gpus.sort(key=lambda gpu: gpu.pf)
    gpus = _refuse_beside_driverless(node, gpus)

    said = [*notes, *map(_other_actor, node.actors), *_fabric_mode(node, targets)]
    refusal = node.driver.problem if gpus else None
    would_change = any(gpu.steps for gpu in gpus)
    if refusal is None and would_change and policy.on_conflict is OnConflict.REFUSE:
        conflicts = (f for f in said if f.code in (Code.OTHER_ACTOR, Code.FABRIC_MODE))
        refusal = next(conflicts, None)
    if refusal is not None:
        gpus = [replace(gpu, steps=(), refusal=gpu.refusal or refusal) for gpu in gpus]
    exclusive = any(step.exclusive for gpu in gpus for step in gpu.steps)
    return Plan(
        gpus=tuple(gpus),
        stop_units=policy.stop_units if exclusive else (),
        refusal=refusal,
        missing=tuple(missing),
        notes=tuple(said),
        unclaimed=tuple(unclaimed),
    )


# --------------------------------------------------------------------------- one GPU


def _plan_target(
    node: ObservedNode, gpu: ObservedGpu, target: GpuTarget, policy: Policy
) -> GpuPlan:
    plan = GpuPlan(pf=gpu.pf, profile_name=target.profile_name, target=target, steps=())
    if target.mode is Mode.PASSTHROUGH and gpu.pci.driver != PF_DRIVER:
        return plan  # whoever passes it through has it; that NVML does not see it is no error
    if _is_out_of_sight(gpu):
        return _recover_first(gpu, plan)
    try:
        facts = _usable(node, gpu, target)
        steps = steps_between(gpu, facts, target, policy)
        plan = replace(plan, notes=tuple(_fewer(gpu, target)))
        _refuse_in_use(gpu, facts, steps, policy)
    except Refused as refused:
        return replace(plan, refusal=refused.finding)
    return replace(plan, steps=_with_persistence_lowered(gpu, facts, steps, policy))


def _plan_deferred(node: ObservedNode, gpu: ObservedGpu, profile_name: str) -> GpuPlan:
    plan = GpuPlan(pf=gpu.pf, profile_name=profile_name, target=None, steps=())
    if _is_out_of_sight(gpu):
        return _recover_first(gpu, plan)
    return replace(plan, refusal=node.driver.problem or _not_readable(gpu))


def _is_out_of_sight(gpu: ObservedGpu) -> bool:
    """NVML cannot read it, and we know why and can mend it: all else is planned after that."""
    return gpu.pci.driver in (None, STUB_DRIVER) or bool(gpu.pci.unbind_lock)


def _recover_first(gpu: ObservedGpu, plan: GpuPlan) -> GpuPlan:
    driver = gpu.pci.driver
    steps: tuple[Step, ...] = ()
    if gpu.pci.unbind_lock:
        why = "nobody can open the GPU while it is held"
        steps = (ReleaseUnbindLock(gpu.pf, why),)
    if driver != PF_DRIVER:
        if gpu.pci.driver_override not in (None, PF_DRIVER):
            reserved = f"no driver, reserved for {gpu.pci.driver_override}"
            finding = Finding.of(Code.ON_OTHER_DRIVER, pf=gpu.pf, driver=reserved)
            return replace(plan, refusal=finding)
        why = "NVML cannot see a GPU that is not on nvidia"
        steps = (*steps, BindDriver(gpu.pf, why, driver))
    for user in users(gpu.holders):
        return replace(plan, refusal=_refusal(Code.IN_USE, gpu, user, steps))
    return replace(plan, steps=steps)


def _usable(node: ObservedNode, gpu: ObservedGpu, target: GpuTarget) -> GpuFacts:
    """The facts of a GPU that may be worked on. Raises Refused otherwise, whatever is wanted."""
    if gpu.pci.driver != PF_DRIVER or gpu.facts is None:
        raise Refused(node.driver.problem or _not_readable(gpu))
    facts = gpu.facts
    if facts.recovery_action not in (None, RecoveryAction.NONE):
        # Even a plain reset: the driver asks for it because the GPU is sick, not for our sake.
        action = facts.recovery_action.name.lower().replace("_", " ")
        raise Refused(Finding.of(Code.GPU_NEEDS_REBOOT, pf=gpu.pf, action=action))
    if facts.mig is not None and None in (facts.mig.current, facts.mig.pending):
        raise Refused(Finding.of(Code.MIG_MODE_UNREADABLE, pf=gpu.pf))
    if target.mode is not Mode.VGPU:
        return facts
    if not gpu.is_vgpu_host:
        raise Refused(Finding.of(Code.NOT_VGPU_HOST, pf=gpu.pf, name=facts.name))
    if facts.host_vgpu_mode is not HostVgpuMode.SRIOV:
        mode = "non-SR-IOV" if facts.host_vgpu_mode is HostVgpuMode.NON_SRIOV else "unknown"
        raise Refused(Finding.of(Code.NON_SRIOV_MODE, pf=gpu.pf, name=facts.name, mode=mode))
    if gpu.pci.sriov_totalvfs == 0:
        raise Refused(Finding.of(Code.NO_SRIOV, pf=gpu.pf, name=facts.name))
    taken = [vf for vf in gpu.vfs if vf.framework is None and vf.driver not in (None, PF_DRIVER)]
    if taken:
        vfs = ", ".join(str(vf.bdf) for vf in taken)
        driver = taken[0].driver
        raise Refused(Finding.of(Code.VFS_ON_VFIO_PCI, pf=gpu.pf, driver=driver, vfs=vfs))
    return facts


def _not_readable(gpu: ObservedGpu) -> Finding:
    if gpu.findings:
        return gpu.findings[0]
    if gpu.pci.driver != PF_DRIVER:
        driver = gpu.pci.driver or "no driver"
        return Finding.of(Code.ON_OTHER_DRIVER, pf=gpu.pf, driver=driver)
    if gpu.facts is not None and not gpu.vgpu_types:
        return Finding.of(Code.TYPES_NOT_LISTED, pf=gpu.pf, name=gpu.facts.name)
    what = "the driver says nothing"
    return Finding.of(Code.GPU_UNREADABLE, pf=gpu.pf, operation="reading it", detail=what)


# --------------------------------------------------------------------------- who stands in the way


def _refuse_in_use(
    gpu: ObservedGpu, facts: GpuFacts, steps: Sequence[Step], policy: Policy
) -> None:
    if not steps:
        return
    for user in users(gpu.holders):
        raise Refused(_refusal(Code.IN_USE, gpu, user, steps))
    for active in facts.active_vgpus:
        raise Refused(_refusal(Code.IN_USE, gpu, f"VM {active.vm_id}", steps))
    if any(step.exclusive for step in steps):
        for client in blocking_clients(gpu.holders, policy):
            raise Refused(_refusal(Code.HELD, gpu, client, steps))


def _refusal(code: Code, gpu: ObservedGpu, holder: object, steps: Sequence[Step]) -> Finding:
    wanted = steps[0].summary
    if len(steps) > 1:
        wanted += f", and {len(steps) - 1} more steps"
    return Finding.of(code, pf=gpu.pf, holder=holder, wanted=wanted)


def _with_persistence_lowered(
    gpu: ObservedGpu, facts: GpuFacts, steps: tuple[Step, ...], policy: Policy
) -> tuple[Step, ...]:
    stopped = any(unit.removesuffix(".service") == PERSISTENCED for unit in policy.stop_units)
    held = is_held_by_persistence(facts, gpu.holders)
    if not held or stopped or not any(step.exclusive for step in steps):
        return steps
    lower = LowerPersistence(gpu.pf, "persistence mode holds the GPU open")
    return (lower, *steps)


# --------------------------------------------------------------------------- the node


def _refuse_beside_driverless(node: ObservedNode, gpus: list[GpuPlan]) -> list[GpuPlan]:
    """sriov-manage captures every driverless card of its model (systemd-facts.md section 9)."""
    bound_by_us = {gpu.pf for gpu in gpus if any(isinstance(s, BindDriver) for s in gpu.steps)}
    model = {gpu.pf: gpu.pci.device_id for gpu in node.gpus}
    # A card with a driver_override takes no other driver, so the tool cannot capture it.
    loose = {
        gpu.pci.device_id: gpu.pf
        for gpu in node.gpus
        if gpu.pci.driver is None and not gpu.pci.driver_override and gpu.pf not in bound_by_us
    }
    return [
        replace(
            plan,
            steps=(),
            refusal=Finding.of(Code.SIBLING_DRIVERLESS, pf=plan.pf, sibling=loose[model[plan.pf]]),
        )
        if model[plan.pf] in loose
        and any(isinstance(step, EnableVfs | DisableVfs) for step in plan.steps)
        else plan
        for plan in gpus
    ]


def _other_actor(actor: Actor) -> Finding:
    return Finding.of(Code.OTHER_ACTOR, kind=actor.kind, name=actor.name, detail=actor.detail)


def _fabric_mode(node: ObservedNode, targets: Iterable[GpuTarget]) -> tuple[Finding, ...]:
    """Whole-card vGPUs on an NVSwitch host with FABRIC_MODE 0 (host-interfaces.md section 7)."""
    if not node.fabric_manager.exists or node.fabric_mode != 0:
        return ()
    for target in targets:
        if target.mode is Mode.VGPU and target.vgpus and not target.mig:
            return (Finding.of(Code.FABRIC_MODE, mode=0, pf=target.pf),)
    return ()


def _fewer(gpu: ObservedGpu, target: GpuTarget) -> list[Finding]:
    """Types of which there will be fewer than now: said in words, since a VM may miss one."""
    names = {t.vgpu_type_id: t.name for t in gpu.vgpu_types}
    now = Counter(vf.vgpu_type_id for vf in gpu.vfs if vf.vgpu_type_id)
    then = Counter(vgpu.vgpu_type_id for vgpu in target.vgpus)
    return [
        Finding.of(
            Code.FEWER_THAN_BEFORE,
            pf=gpu.pf,
            type=names.get(type_id, f"type {type_id}"),
            before=count,
            after=then[type_id],
        )
        for type_id, count in now.items()
        if then[type_id] < count
    ]
