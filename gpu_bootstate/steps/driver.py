"""The PF and its driver: a lock that was left, a stranded card, persistence mode."""

from __future__ import annotations

from gpu_bootstate.failures import is_of_the_gpu
from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.in_use import is_persistenced
from gpu_bootstate.model import (
    PF_DRIVER,
    STUB_DRIVER,
    Bdf,
    BindDriver,
    LowerPersistence,
    ReleaseUnbindLock,
    StepStatus,
)
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.steps.context import StepContext, StepFailed, TryAgain


def release_unbind_lock(ctx: StepContext, step: ReleaseUnbindLock) -> StepStatus:
    if not ctx.hw.pf(step.pf).unbind_lock:
        return StepStatus.SKIPPED
    ctx.no_other_tool(step)
    ctx.no_user(step)
    ctx.hw.release_unbind_lock(step.pf)
    if ctx.hw.pf(step.pf).unbind_lock:
        raise StepFailed(
            Finding.of(
                Code.GPU_UNREADABLE,
                pf=step.pf,
                operation="releasing the unbindLock",
                detail="it still reads 1",
            )
        )
    ctx.note(Finding.of(Code.LOCK_LEFT, pf=step.pf))
    return StepStatus.DONE


def bind_driver(ctx: StepContext, step: BindDriver) -> StepStatus:
    pci = ctx.hw.pf(step.pf)
    if pci.driver == PF_DRIVER:
        return StepStatus.SKIPPED
    if pci.driver not in (None, STUB_DRIVER):
        raise StepFailed(Finding.of(Code.ON_OTHER_DRIVER, pf=step.pf, driver=pci.driver))
    ctx.no_other_tool(step)
    ctx.no_user(step)
    ctx.bind_back(step.pf)
    return StepStatus.DONE


def lower_persistence(ctx: StepContext, step: LowerPersistence) -> StepStatus:
    def attempt() -> StepStatus:
        ctx.no_user(step)
        try:
            ctx.hw.set_persistence(step.pf, enabled=False)
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            raise _persistence_trouble(ctx, step.pf, err.detail) from err
        # The mode can read "off" while the daemon still has the GPU open (gpud#1322).
        if any(map(is_persistenced, ctx.hw.holders(step.pf))):
            raise _persistence_trouble(ctx, step.pf, "the daemon still has the GPU open")
        if ctx.hw.facts(step.pf).persistence:
            raise _persistence_trouble(ctx, step.pf, "the mode still reads on")
        return StepStatus.DONE

    return ctx.retrying(step.pf, step.summary, attempt)


def _persistence_trouble(ctx: StepContext, pf: Bdf, detail: str) -> TryAgain:
    finding = Finding.of(Code.PERSISTENCE_NOT_LOWERED, pf=pf, detail=detail)
    return TryAgain(finding, detail)
