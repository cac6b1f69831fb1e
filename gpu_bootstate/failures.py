"""What a failed hardware call means for a GPU: HardwareError -> Finding."""

from __future__ import annotations

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.model import Bdf
from gpu_bootstate.reasons import Code, Finding

# These end the run of that GPU whatever was attempted: the GPU or our access to it is the trouble.
_OF_THE_GPU = frozenset(
    {ErrorKind.HUNG, ErrorKind.GPU_LOST, ErrorKind.NO_PERMISSION, ErrorKind.NOT_FOUND}
)


def is_of_the_gpu(err: HardwareError) -> bool:
    return err.kind in _OF_THE_GPU


def of_the_node(err: HardwareError) -> Finding:
    """A failed read that belongs to no GPU: the bus as a whole, or systemd."""
    waited = "" if err.waited_s is None else f"no answer within {err.waited_s:g} s"
    detail = err.detail or waited or "no answer"
    return Finding.of(Code.NODE_UNREADABLE, operation=err.operation, detail=detail)


def explain(err: HardwareError, pf: Bdf, *, driver: str | None = None) -> Finding:
    """The finding for a read that failed, or for a change that failed for a general reason."""
    if err.kind is ErrorKind.HUNG:
        waited = f"{err.waited_s:g}" if err.waited_s is not None else "the allowed"
        return Finding.of(Code.GPU_HUNG, pf=pf, operation=err.operation, waited_s=waited)
    if err.kind is ErrorKind.GPU_LOST:
        return Finding.of(Code.GPU_LOST, pf=pf, operation=err.operation)
    if err.kind is ErrorKind.NOT_FOUND:
        return Finding.of(Code.GPU_NOT_IN_NVML, pf=pf, driver=driver or "nvidia", detail=err.detail)
    if err.kind is ErrorKind.NO_PERMISSION:
        return Finding.of(Code.PERMISSION, pf=pf, operation=err.operation)
    return Finding.of(Code.GPU_UNREADABLE, pf=pf, operation=err.operation, detail=err.detail)
