"""Runs in the machine, as the main process of the shipped unit: the real adapters on a real kernel.

Says what it found as one line of JSON. `Hardware` is used as `execute` uses it; the vGPU types, for
which there is no driver, are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, "/usr/lib/gpu-bootstate/python")

from gpu_bootstate.hardware.protocol import CallLimits
from gpu_bootstate.hardware.real import RealHardware
from gpu_bootstate.model import Bdf

_TOOL = "/usr/lib/nvidia/sriov-manage"


def found(hw: RealHardware, pf: Bdf) -> dict[str, Any]:
    function = hw.pf(pf)
    return {
        "driver": function.driver,
        "total": function.sriov_totalvfs,
        "on": function.sriov_numvfs,
        "vfs": [[vf.index, str(vf.bdf)] for vf in hw.vfs(pf)],
    }


def switch(hw: RealHardware, pf: Bdf, *, enable: bool) -> dict[str, Any]:
    """Switches the VFs while another thread waits for the kernel's event, for ever if need be."""
    hw.wait_for_event(0)  # listens from here on
    woken = threading.Event()

    def wait() -> None:
        hw.wait_for_event(3600)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    result = hw.sriov_manage(pf, enable=enable, timeout_s=60)
    woken.wait()
    return {"exit_code": result.exit_code, "said": result.text, "woken": True}


def holders(hw: RealHardware, pf: Bdf) -> list[dict[str, Any]]:
    return [
        {"pid": each.pid, "kind": each.kind.value, "vf": str(each.vf), "vm": each.vm}
        for each in hw.holders(pf)
    ]


def main() -> None:
    job, pf = Path("/etc/boot-test/probe").read_text(encoding="utf-8").split()
    hw = RealHardware(Path("/"), limits=CallLimits(), sriov_manage=_TOOL)
    said: dict[str, Any] = {"before": {str(each.bdf): found(hw, each.bdf) for each in hw.pfs()}}
    if job in ("enable", "disable"):
        said["tool"] = switch(hw, Bdf.parse(pf), enable=job == "enable")
        said["after"] = {str(each.bdf): found(hw, each.bdf) for each in hw.pfs()}
    elif job == "reboot":
        hw.reboot()
    else:
        said["holders"] = holders(hw, Bdf.parse(pf))
    said["kernel_log"] = len(hw.kernel_log())
    done = subprocess.run(["/sbin/modprobe", "vfio-pci"], check=False)
    said["modprobe"] = done.returncode
    hw.close()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
