"""VFs on and off through the vendor tool, and the wait until they offer vGPU types."""

from __future__ import annotations

import contextlib

from gpu_bootstate.hardware.protocol import (
    ErrorKind,
    HardwareError,
    ToolResult,
)
from gpu_bootstate.model import (
    PF_DRIVER,
    STUB_DRIVER,
    AwaitVfs,
    Bdf,
    DisableVfs,
    EnableVfs,
    StepStatus,
)
from gpu_bootstate.preflight import VGPU_MGR, wait_for_unit
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.steps.context import StepContext, StepFailed, TryAgain

# Kernel messages of sriov_enable (host-interfaces.md 1.5): firmware, so trying again is no use.
_NO_RESOURCES = (
    "not enough MMIO resources",
    "bus number out of range",
    " out of range of [bus ",
    "IOV BARS not allocated",
)
_LOCK_BUSY = "unbindLock"


def disable_vfs(ctx: StepContext, step: DisableVfs) -> StepStatus:
    pf = step.pf
    if ctx.hw.pf(pf).sriov_numvfs == 0:
        return StepStatus.SKIPPED

    def attempt() -> StepStatus:
        _sriov_manage(ctx, pf, enable=False)
        if (left := ctx.hw.pf(pf).sriov_numvfs) != 0:
            detail = f"{left} VFs left"
            finding = Finding.of(Code.VFS_NOT_REMOVED, pf=pf, found=left, detail=detail)
            raise TryAgain(finding, detail)
        return StepStatus.DONE

    return ctx.retrying(pf, "disable VFs", attempt)


def enable_vfs(ctx: StepContext, step: EnableVfs) -> StepStatus:
    pf, count = step.pf, step.vf_count
    if _has_vfs(ctx, pf, count):
        return StepStatus.SKIPPED

    def attempt() -> StepStatus:
        started = ctx.hw.now()
        result = _sriov_manage(ctx, pf, enable=True)
        found = ctx.hw.pf(pf).sriov_numvfs
        if found == count:
            return StepStatus.DONE
        log = ctx.log_since(started)
        for line in log:
            if any(text in line for text in _NO_RESOURCES):
                raise StepFailed(Finding.of(Code.VFS_NO_RESOURCES, pf=pf, log=line))
        if found and ctx.policy.allow_fewer_vfs:
            return StepStatus.DONE  # whether it is enough, the next plan says
        if found:
            raise StepFailed(Finding.of(Code.VFS_TOO_FEW, pf=pf, found=found, wanted=count))
        detail = result.text or f"exit code {result.exit_code}"
        if log:
            detail += f" (kernel: {log[-1]})"
        if _LOCK_BUSY in result.text:
            finding = Finding.of(
                Code.UNBIND_LOCK_BUSY,
                pf=pf,
                attempts=ctx.policy.attempts,
                holder=ctx.holder_names(pf),
            )
        else:
            finding = Finding.of(
                Code.VFS_NOT_CREATED,
                pf=pf,
                attempts=ctx.policy.attempts,
                found=found,
                wanted=count,
                detail=detail,
            )
        raise TryAgain(finding, detail)

    status = ctx.retrying(pf, "enable VFs", attempt)
    _look_after_siblings(ctx, pf)
    return status


def _has_vfs(ctx: StepContext, pf: Bdf, count: int) -> bool:
    pci = ctx.hw.pf(pf)
    return pci.driver == PF_DRIVER and pci.sriov_numvfs == count


def _sriov_manage(ctx: StepContext, pf: Bdf, *, enable: bool) -> ToolResult:
    """One run of the vendor tool, and the PF back on nvidia whatever it left behind."""
    if ctx.hw.pf(pf).driver != PF_DRIVER:
        ctx.bind_back(pf)
    _managers_up(ctx, pf)
    what = f"{'enable' if enable else 'disable'} VFs"
    _no_driverless_sibling(ctx, pf)
    ctx.no_tool_running(pf, what)
    ctx.alone(pf, what)
    limit = ctx.deadline.remaining(ctx.policy.tool_s)
    try:
        result = ctx.hw.sriov_manage(pf, enable=enable, timeout_s=limit)
    except HardwareError as err:
        if err.kind is not ErrorKind.TOOL_MISSING:
            raise
        package = "NVIDIA vGPU host driver package"
        path = ctx.policy.sriov_manage
        raise StepFailed(
            Finding.of(Code.TOOL_MISSING, path=path, detail=err.detail, package=package)
        ) from err
    if ctx.hw.pf(pf).driver != PF_DRIVER:
        ctx.bind_back(pf)
    if ctx.hw.pf(pf).unbind_lock:
        # The tool is over, so the lock is nobody's; while it is held nobody can open the GPU.
        ctx.hw.release_unbind_lock(pf)
        ctx.note(Finding.of(Code.LOCK_LEFT, pf=pf))
    if result.timed_out:
        raise ctx.tool_hung(pf, result, limit)
    return result


def vfs_appear(ctx: StepContext, step: AwaitVfs) -> bool:
    """Only waits, so it is safe while other cards enable their VFs. False: they did not."""
    return _vfs_ready(ctx, step.pf, step.vf_count, ctx.policy.vf_wait_s)


def await_vfs(ctx: StepContext, step: AwaitVfs) -> StepStatus:
    """When `vfs_appear` was in vain: registration failed, an off and on makes it anew (N5)."""
    if _vfs_ready(ctx, step.pf, step.vf_count, limit_s=0):
        return StepStatus.DONE
    ctx.no_user(step)
    disable_vfs(ctx, DisableVfs(step.pf, step.why, step.vf_count))
    enable_vfs(ctx, EnableVfs(step.pf, step.why, step.vf_count))
    if not vfs_appear(ctx, step):
        missing = sum(vf.framework is None for vf in ctx.hw.vfs(step.pf))
        raise StepFailed(
            Finding.of(
                Code.VFS_NO_TYPES,
                pf=step.pf,
                missing=missing,
                wanted=step.vf_count,
                waited_s=f"{ctx.policy.vf_wait_s:g}",
            )
        )
    ctx.note(Finding.of(Code.VFS_CYCLED, pf=step.pf))
    return StepStatus.DONE


def _vfs_ready(ctx: StepContext, pf: Bdf, count: int, limit_s: float) -> bool:
    until = ctx.hw.now() + limit_s
    while True:
        vfs = ctx.hw.vfs(pf)
        enough = len(vfs) >= count or (ctx.policy.allow_fewer_vfs and bool(vfs))
        unready = sum(vf.framework is None for vf in vfs)
        if enough and not unready:
            return True
        if ctx.hw.now() >= until:
            return False
        ctx.wait(pf, f"{max(unready, count - len(vfs))} VFs to offer vGPU types", until)


def _no_driverless_sibling(ctx: StepContext, pf: Bdf) -> None:
    """Checked again here: a card may have lost its driver since the plan was made."""
    for sibling in ctx.model_pfs:
        if sibling == pf:
            continue
        try:
            pci = ctx.hw.pf(sibling)
        except HardwareError as err:
            # One that left the bus cannot be captured; one of ours that is sick fails by itself,
            # and takes no other card down.
            if err.kind is ErrorKind.NOT_FOUND or sibling in ctx.configured:
                continue
            raise StepFailed(
                Finding.of(Code.SIBLING_UNREADABLE, pf=pf, sibling=sibling, detail=err.detail)
            ) from err
        if pci.driver is not None or pci.driver_override:
            continue
        if sibling not in ctx.configured:
            raise StepFailed(Finding.of(Code.SIBLING_DRIVERLESS, pf=pf, sibling=sibling))
        raise TryAgain(
            Finding.of(Code.SIBLING_DRIVERLESS, pf=pf, sibling=sibling),
            f"{sibling} has no driver at the moment",
        )


def _look_after_siblings(ctx: StepContext, pf: Bdf) -> None:
    """After the tool has run, no card of its model may be left where it parks them."""
    for sibling in ctx.model_pfs:
        if sibling == pf:
            continue
        with contextlib.suppress(HardwareError):
            if ctx.hw.pf(sibling).driver == STUB_DRIVER:
                ctx.note(Finding.of(Code.PF_STRANDED, pf=sibling, driver=STUB_DRIVER))


def _managers_up(ctx: StepContext, pf: Bdf) -> None:
    """The vGPU manager can die after it was seen up (N6); without it the tool does nothing."""
    if not ctx.hw.unit_state(VGPU_MGR).exists:
        return
    started = ctx.hw.now()
    state = wait_for_unit(ctx.hw, VGPU_MGR, ctx.policy.manager_wait_s, ctx.deadline, ctx.listener)
    if not state.is_active:
        raise StepFailed(
            Finding.of(
                Code.VGPU_MANAGER_DOWN,
                unit=VGPU_MGR.removesuffix(".service"),
                waited_s=f"{ctx.hw.now() - started:.0f}",
                state=f"{state.active_state}/{state.sub_state}, result {state.result}",
                log=f"none here; {pf} waited for it",
            )
        )
