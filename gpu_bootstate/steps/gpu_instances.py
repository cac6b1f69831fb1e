"""GPU instances and their compute instances."""

from __future__ import annotations

from gpu_bootstate.failures import is_of_the_gpu
from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.model import (
    Bdf,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyGpuInstance,
    GpuInstance,
    Placement,
    StepStatus,
)
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.steps.context import StepContext, StepFailed, TryAgain


def destroy_gpu_instance(ctx: StepContext, step: DestroyGpuInstance) -> StepStatus:
    before = ctx.hw.gpu_instances(step.pf)
    there = next((gi for gi in before if gi.gi_id == step.gi_id), None)
    if there is None or there.placement != step.placement:
        return StepStatus.SKIPPED
    ctx.no_user(step)
    try:
        ctx.hw.destroy_gpu_instance(step.pf, step.gi_id)
    except HardwareError as err:
        if is_of_the_gpu(err):
            raise
        raise StepFailed(_destroy_failed(ctx, step, err.detail)) from err
    after = ctx.hw.gpu_instances(step.pf)
    if any(gi.gi_id == step.gi_id and gi.placement == step.placement for gi in after):
        raise StepFailed(_destroy_failed(ctx, step, "it is still there"))
    return StepStatus.DONE


def _destroy_failed(ctx: StepContext, step: DestroyGpuInstance, detail: str) -> Finding:
    return Finding.of(
        Code.INSTANCE_DESTROY_FAILED,
        pf=step.pf,
        gi_id=step.gi_id,
        profile=step.profile_name,
        detail=detail,
        holder=ctx.holder_names(step.pf),
    )


def create_gpu_instance(ctx: StepContext, step: CreateGpuInstance) -> StepStatus:
    if instance_at(ctx, step.pf, step.placement, step.gi_profile_id) is not None:
        return StepStatus.SKIPPED
    present = ctx.hw.gpu_instances(step.pf)
    if any(gi.placement.overlaps(step.placement) for gi in present):
        raise StepFailed(_create_failed(ctx, step, "the place is taken"))

    def attempt() -> StepStatus:
        detail = "it is not there afterwards"
        transient = False
        ctx.no_user(step)
        try:
            ctx.hw.create_gpu_instance(step.pf, step.gi_profile_id, step.placement)
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            detail, transient = err.detail, err.kind is ErrorKind.UNKNOWN
        if instance_at(ctx, step.pf, step.placement, step.gi_profile_id) is not None:
            return StepStatus.DONE
        finding = _create_failed(ctx, step, detail)
        if transient:
            raise TryAgain(finding, detail)
        raise StepFailed(finding)

    return ctx.retrying(step.pf, step.summary, attempt)


def instance_at(
    ctx: StepContext, pf: Bdf, placement: Placement, gi_profile_id: int | None = None
) -> GpuInstance | None:
    for gi in ctx.hw.gpu_instances(pf):
        if gi.placement == placement and gi_profile_id in (None, gi.gi_profile_id):
            return gi
    return None


def _create_failed(ctx: StepContext, step: CreateGpuInstance, detail: str) -> Finding:
    present = ", ".join(
        f"profile {gi.gi_profile_id} at {gi.placement}" for gi in ctx.hw.gpu_instances(step.pf)
    )
    return Finding.of(
        Code.INSTANCE_CREATE_FAILED,
        pf=step.pf,
        profile=step.profile_name,
        placement=step.placement,
        detail=detail,
        present=present or "none",
    )


def create_compute_instance(ctx: StepContext, step: CreateComputeInstance) -> StepStatus:
    gi = instance_at(ctx, step.pf, step.placement)
    if gi is not None and gi.compute_instances:
        return StepStatus.SKIPPED
    detail = "its GPU instance is gone"
    if gi is not None:
        ctx.no_user(step)
        try:
            ctx.hw.create_compute_instance(step.pf, gi.gi_id)
            detail = "it is not there afterwards"
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            detail = err.detail
    now = instance_at(ctx, step.pf, step.placement)
    if now is not None and now.compute_instances:
        return StepStatus.DONE
    raise StepFailed(
        Finding.of(
            Code.INSTANCE_CREATE_FAILED,
            pf=step.pf,
            profile="compute instance",
            placement=step.placement,
            detail=detail,
            present=f"GPU instance {gi.gi_id}" if gi else "none",
        )
    )
