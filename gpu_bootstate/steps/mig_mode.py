"""MIG mode, and the reset that commits it on parts that cannot by themselves."""

from __future__ import annotations

from gpu_bootstate.failures import is_of_the_gpu
from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError, ToolResult
from gpu_bootstate.model import Bdf, MigMode, ResetGpu, SetMigMode, StepStatus
from gpu_bootstate.preflight import FABRIC_MANAGER, wait_for_unit
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.steps.context import StepContext, StepFailed, TryAgain


def set_mig_mode(ctx: StepContext, step: SetMigMode) -> StepStatus:
    wanted = "on" if step.enabled else "off"

    def attempt() -> StepStatus:
        if ctx.hw.pf(step.pf).sriov_numvfs:
            detail = "VFs are on again"
            raise StepFailed(
                Finding.of(Code.MIG_MODE_FAILED, pf=step.pf, wanted=wanted, detail=detail)
            )
        ctx.alone(step.pf, step.summary)
        try:
            status = ctx.hw.set_mig_mode(step.pf, enabled=step.enabled)
        except HardwareError as err:
            if is_of_the_gpu(err):
                raise
            finding = Finding.of(Code.MIG_MODE_FAILED, pf=step.pf, wanted=wanted, detail=err.detail)
            if err.kind in (ErrorKind.IN_USE, ErrorKind.UNKNOWN):
                raise TryAgain(finding, err.detail) from err
            raise StepFailed(finding) from err
        mode = _mig(ctx, step.pf)
        if mode.pending == step.enabled and mode.current == step.enabled:
            return StepStatus.DONE
        detail = f"activation status: {status.value}"
        finding = Finding.of(Code.MIG_MODE_PENDING, pf=step.pf, wanted=wanted, detail=detail)
        pending = mode.pending == step.enabled
        # The first refusal may come from a client that is just leaving, so set once more; what
        # is still pending then is what the reset is for.
        tried = ctx.attempts > 1 or status is ActivationStatus.RESET_REQUIRED
        if pending and ctx.commits_by_reset and tried:
            return StepStatus.DONE
        raise TryAgain(finding, detail)

    return ctx.retrying(step.pf, step.summary, attempt)


def _mig(ctx: StepContext, pf: Bdf) -> MigMode:
    mode = ctx.hw.facts(pf).mig
    if mode is None or None in (mode.current, mode.pending):
        raise StepFailed(Finding.of(Code.MIG_MODE_UNREADABLE, pf=pf))
    return mode


def reset_gpu(ctx: StepContext, step: ResetGpu) -> StepStatus:
    pf = step.pf
    if not _mig(ctx, pf).is_pending:
        return StepStatus.SKIPPED
    if ctx.hw.pf(pf).sriov_numvfs:
        detail = "VFs are on again, and a GPU with VFs is never reset"
        raise StepFailed(Finding.of(Code.RESET_FAILED, pf=pf, exit_code="none", detail=detail))
    _fabric_manager_up(ctx, pf)

    def attempt() -> StepStatus:
        ctx.alone(pf, step.summary)
        result = ctx.hw.reset_gpu(pf, timeout_s=ctx.deadline.remaining(ctx.policy.reset_s))
        _judge_reset(ctx, pf, result)
        ctx.until_nvml_sees(pf)
        mode = _mig(ctx, pf)
        if mode.is_pending:
            current, pending = ("on" if bit else "off" for bit in (mode.current, mode.pending))
            raise StepFailed(
                Finding.of(Code.RESET_INEFFECTIVE, pf=pf, current=current, pending=pending)
            )
        return StepStatus.DONE

    return ctx.retrying(pf, step.summary, attempt)


def _judge_reset(ctx: StepContext, pf: Bdf, result: ToolResult) -> None:
    if result.timed_out:
        raise ctx.tool_hung(pf, result, ctx.policy.reset_s)
    if "not supported" in result.text:
        raise StepFailed(Finding.of(Code.RESET_UNSUPPORTED, pf=pf, detail=result.text))
    if "In use by another client" in result.text:
        finding = Finding.of(Code.RESET_REFUSED, pf=pf, holder=ctx.holder_names(pf))
        raise TryAgain(finding, result.text)
    if result.exit_code != 0:
        raise StepFailed(
            Finding.of(Code.RESET_FAILED, pf=pf, exit_code=result.exit_code, detail=result.text)
        )


def _fabric_manager_up(ctx: StepContext, pf: Bdf) -> None:
    """On A100 boards with NVSwitch a single GPU resets only under it (host-interfaces 5.5)."""
    started = ctx.hw.now()
    if not ctx.hw.unit_state(FABRIC_MANAGER).exists:
        return
    state = wait_for_unit(
        ctx.hw, FABRIC_MANAGER, ctx.policy.manager_wait_s, ctx.deadline, ctx.listener
    )
    if not state.is_active:
        waited = f"{ctx.hw.now() - started:.0f}"
        raise StepFailed(
            Finding.of(Code.FABRIC_MANAGER_DOWN, pf=pf, state=state.active_state, waited_s=waited)
        )
