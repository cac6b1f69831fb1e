"""Step -> the function that does it: check the precondition again, act, read back.

Each returns a StepStatus or raises StepFailed with a finding; RunEnded passes through. What that
means for the GPU is the caller's business, and no function here touches another GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_bootstate.failures import explain
from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import (
    AwaitVfs,
    BindDriver,
    ClearVgpuType,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyGpuInstance,
    DisableVfs,
    EnableVfs,
    LowerPersistence,
    ReleaseUnbindLock,
    ResetGpu,
    SetMigMode,
    SetMixedSize,
    SetVgpuType,
    Step,
    StepStatus,
)
from gpu_bootstate.steps import driver, gpu_instances, mig_mode, vfs, vgpu_types
from gpu_bootstate.steps.context import StepContext, StepFailed

_WAYS: dict[type[Step], Callable[[StepContext, Any], StepStatus]] = {
    ReleaseUnbindLock: driver.release_unbind_lock,
    BindDriver: driver.bind_driver,
    LowerPersistence: driver.lower_persistence,
    ClearVgpuType: vgpu_types.clear_vgpu_type,
    DestroyGpuInstance: gpu_instances.destroy_gpu_instance,
    DisableVfs: vfs.disable_vfs,
    SetMigMode: mig_mode.set_mig_mode,
    ResetGpu: mig_mode.reset_gpu,
    EnableVfs: vfs.enable_vfs,
    AwaitVfs: vfs.await_vfs,
    CreateGpuInstance: gpu_instances.create_gpu_instance,
    CreateComputeInstance: gpu_instances.create_compute_instance,
    SetMixedSize: vgpu_types.set_mixed_size,
    SetVgpuType: vgpu_types.set_vgpu_type,
}


def perform(ctx: StepContext, step: Step) -> StepStatus:
    """Raises StepFailed, or RunEnded when no time is left to begin."""
    ctx.begin()
    ctx.deadline.check(f"{step.pf}: {step.summary}")
    try:
        return _WAYS[type(step)](ctx, step)
    except HardwareError as err:
        raise StepFailed(explain(err, step.pf)) from err
