"""vGPU types on VFs, and mixed-size mode, which must come before the first of them."""

from __future__ import annotations

import errno

from gpu_bootstate.failures import is_of_the_gpu
from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import Bdf, ClearVgpuType, SetMixedSize, SetVgpuType, StepStatus, Vf
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.steps.context import StepContext, StepFailed, TryAgain
from gpu_bootstate.steps.gpu_instances import instance_at

# RM statuses in `Failed to add vgpu create request: 0x..` (host-interfaces.md 2.3).
_NOT_INITIALISED = ("0x66", "not initialized yet")
_NO_INSTANCE = "0x38"


def clear_vgpu_type(ctx: StepContext, step: ClearVgpuType) -> StepStatus:
    found = _vf(ctx, step.pf, step.vf)
    if found.vgpu_type_id == 0:
        return StepStatus.SKIPPED
    if found.vgpu_type_id != step.vgpu_type_id:
        raise _type_failed(ctx, step, step.vf, f"it has type {found.vgpu_type_id} now")

    def attempt() -> StepStatus:
        ctx.no_user(step)
        try:
            ctx.hw.set_vgpu_type(step.vf, 0, mdev_uuid=step.mdev_uuid)
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            if _vf(ctx, step.pf, step.vf).vgpu_type_id != 0:
                # Right after a VM has stopped the driver answers EPERM for a moment.
                failed = _type_failed(ctx, step, step.vf, f"clearing it: {err.detail}")
                raise TryAgain(failed.finding, err.detail) from err
        still = _vf(ctx, step.pf, step.vf).vgpu_type_id
        if still != 0:
            found = f"{still} after writing 0"
            raise StepFailed(
                Finding.of(
                    Code.TYPE_NOT_APPLIED,
                    pf=step.pf,
                    type="none",
                    vf=step.vf,
                    found=found,
                )
            )
        return StepStatus.DONE

    return ctx.retrying(step.pf, step.summary, attempt)


def set_mixed_size(ctx: StepContext, step: SetMixedSize) -> StepStatus:
    wanted = "on" if step.enabled else "off"

    def failed(detail: str) -> StepFailed:
        finding = Finding.of(Code.MIXED_SIZE_FAILED, pf=step.pf, wanted=wanted, detail=detail)
        return StepFailed(finding)

    gi = instance_at(ctx, step.pf, step.gi_placement) if step.gi_placement else None
    if step.gi_placement is not None and gi is None:
        raise failed(f"the GPU instance at {step.gi_placement} is gone")
    ctx.no_user(step)
    try:
        ctx.hw.set_mixed_size(step.pf, enabled=step.enabled, gi_id=gi.gi_id if gi else None)
    except HardwareError as err:
        if is_of_the_gpu(err):
            raise
        raise failed(err.detail) from err
    if step.gi_placement is None:
        now = ctx.hw.facts(step.pf).mixed_size
    else:
        again = instance_at(ctx, step.pf, step.gi_placement)
        now = again.mixed_size if again else None
    if bool(now) != step.enabled:
        raise failed("the driver accepted it and did not keep it")
    return StepStatus.DONE


def set_vgpu_type(ctx: StepContext, step: SetVgpuType) -> StepStatus:
    vf = _vf_at(ctx, step)
    if vf.vgpu_type_id == step.vgpu_type_id:
        return StepStatus.SKIPPED
    if vf.vgpu_type_id != 0:
        raise _type_failed(ctx, step, vf.bdf, f"it has type {vf.vgpu_type_id} now")

    def attempt() -> StepStatus:
        _creatable(ctx, step, vf)
        ctx.no_user(step)
        started = ctx.hw.now()
        try:
            ctx.hw.set_vgpu_type(vf.bdf, step.vgpu_type_id, mdev_uuid=step.mdev_uuid)
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            # The errno is a hint, the read-back the truth (host-interfaces.md 2.3).
            if _vf_at(ctx, step).vgpu_type_id != step.vgpu_type_id:
                raise _type_refused(ctx, step, vf, err, started) from err
        now = _vf_at(ctx, step)
        if now.vgpu_type_id != step.vgpu_type_id:
            raise StepFailed(
                Finding.of(
                    Code.TYPE_NOT_APPLIED,
                    pf=step.pf,
                    type=step.type_name,
                    vf=vf.bdf,
                    found=now.vgpu_type_id,
                )
            )
        _on_right_instance(ctx, step, now)
        return StepStatus.DONE

    return ctx.retrying(step.pf, step.summary, attempt)


def _creatable(ctx: StepContext, step: SetVgpuType, vf: Vf) -> None:
    offered = ctx.hw.creatable_vgpu_types(vf.bdf)
    if step.vgpu_type_id in offered:
        return
    named = {t.vgpu_type_id: t.name for t in ctx.hw.vgpu_types(step.pf)}
    finding = Finding.of(
        Code.TYPE_NOT_CREATABLE,
        pf=step.pf,
        vf=vf.bdf,
        type=step.type_name,
        offered=", ".join(named.get(i, f"type {i}") for i in offered) or "nothing",
    )
    # The list can stay empty for a while after GPU instances have changed.
    raise TryAgain(finding, "the VF does not offer the type")


def _type_refused(
    ctx: StepContext, step: SetVgpuType, vf: Vf, err: HardwareError, since_s: float
) -> Exception:
    log = ctx.log_since(since_s)
    said = log[-1] if log else ""
    if any(text in line for line in log for text in _NOT_INITIALISED):
        return TryAgain(_type_failed(ctx, step, vf.bdf, err.detail, said).finding, said)
    if _NO_INSTANCE in said and step.gi_profile_id is not None:
        return StepFailed(
            Finding.of(Code.TYPE_NO_GPU_INSTANCE, pf=step.pf, type=step.type_name, vf=vf.bdf)
        )
    failed = _type_failed(ctx, step, vf.bdf, err.detail, said)
    if err.errno in (errno.EIO, errno.EAGAIN) and not said:
        return TryAgain(failed.finding, err.detail)
    return failed


def _type_failed(
    ctx: StepContext, step: SetVgpuType | ClearVgpuType, vf: Bdf, detail: str, log: str = ""
) -> StepFailed:
    return StepFailed(
        Finding.of(
            Code.TYPE_WRITE_FAILED,
            pf=step.pf,
            type=step.type_name,
            vf=vf,
            detail=detail,
            log=f"Kernel: {log}" if log else "",
        )
    )


def _on_right_instance(ctx: StepContext, step: SetVgpuType, vf: Vf) -> None:
    if step.gi_profile_id is None or vf.gi_id is None:
        return
    instances = {gi.gi_id: gi.gi_profile_id for gi in ctx.hw.gpu_instances(step.pf)}
    if instances.get(vf.gi_id) != step.gi_profile_id:
        raise StepFailed(
            Finding.of(
                Code.TYPE_WRONG_INSTANCE,
                pf=step.pf,
                vf=vf.bdf,
                found=vf.gi_id,
                wanted=step.gi_profile_id,
            )
        )


def _vf(ctx: StepContext, pf: Bdf, bdf: Bdf) -> Vf:
    for vf in ctx.hw.vfs(pf):
        if vf.bdf == bdf:
            return vf
    raise StepFailed(
        Finding.of(Code.GPU_UNREADABLE, pf=pf, operation=f"finding VF {bdf}", detail="it is gone")
    )


def _vf_at(ctx: StepContext, step: SetVgpuType) -> Vf:
    for vf in ctx.hw.vfs(step.pf):
        if vf.index == step.vf_index:
            return vf
    count = len(ctx.hw.vfs(step.pf))
    raise StepFailed(
        Finding.of(Code.VFS_TOO_FEW, pf=step.pf, found=count, wanted=step.vf_index + 1)
    )
