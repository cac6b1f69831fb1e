"""The kernel log of this boot, from /dev/kmsg."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gpu_bootstate.model import KernelLine

_OURS = re.compile(r"NVRM|nvidia|Xid|SR-IOV|pci-pf-stub|vfio|MMIO resources", re.IGNORECASE)
_RECORD_BYTES = 8192  # the kernel gives a record whole or not at all (EINVAL)


def kernel_log(root: Path) -> tuple[KernelLine, ...]:
    """Lines about GPUs, oldest first; none where the log may not be read.

    A record is ``priority,sequence,microseconds,flags;text`` (Documentation/ABI/testing/dev-kmsg);
    the microseconds are those of CLOCK_MONOTONIC, nearly.
    """
    records: list[bytes] = []
    with contextlib.suppress(OSError):
        descriptor = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while True:
                try:
                    record = os.read(descriptor, _RECORD_BYTES)
                except BrokenPipeError:
                    continue  # overwritten while we read; the next read goes on after it
                except BlockingIOError:
                    break
                if not record:
                    break  # a plain file that stands in
                records.append(record)
        finally:
            os.close(descriptor)
    lines = (_parse(line) for line in b"".join(records).decode(errors="replace").splitlines())
    return tuple(line for line in lines if line is not None)


def _parse(line: str) -> KernelLine | None:
    match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line)
    if match is None or not _OURS.search(match[2]):
        return None
    return KernelLine(int(match[1]) / 1e6, match[2])
