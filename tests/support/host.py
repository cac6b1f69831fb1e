"""A host on disk for the real adapters: a sysfs and procfs tree, an NVML library, vendor tools.

Nothing of the package is replaced. The library is built against NVIDIA's header and reached through
the unmodified pynvml; plain files answer writes as the kernel does (attributes.c); the tools are
programs on PATH. Everything that is under test runs in a process started with `environment`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_bootstate.catalog.reader import Board, board
from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import Bdf

_HERE = Path(__file__).parent
_REPO = _HERE.parents[1]
_TOOLS = _HERE / "tools"

# nvml.h: the enum that GetGpuInstanceProfileInfo takes is not the profile id.
_PROFILE_ENUM = {19: 0, 14: 1, 9: 2, 5: 3, 0: 4, 20: 7, 15: 9, 47: 10, 35: 11, 32: 12}


@functools.cache
def _built(source: Path, name: str, *flags: str) -> Path:
    """Compile once for each text of the source; warnings are errors."""
    text = source.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"gpu-bootstate-tests-{os.getuid()}"
    folder = folder / hashlib.sha256(text + repr(flags).encode()).hexdigest()[:16]
    library = folder / name
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{name}.{os.getpid()}"
        command = ["gcc", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-O1", "-fPIC"]
        command += ["-shared", "-o", str(unfinished), str(source), *flags]
        subprocess.run(command, check=True)  # noqa: S603  # the compiler
        unfinished.replace(library)
    return library


def nvml_library() -> Path:
    """libnvidia-ml.so.1, built against the nvml.h of the package nvidia-nvml-dev."""
    spec = importlib.util.find_spec("nvidia")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    headers = [
        header.parent
        for place in spec.submodule_search_locations
        for header in Path(place).glob("*/include/nvml.h")
    ]
    flags = ("-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1", f"-I{headers[0]}")
    return _built(_HERE / "nvml" / "fake_nvml.c", "libnvidia-ml.so.1", *flags)


class Host:
    """A machine with GPUs of some models; starts as a just booted vGPU host."""

    def __init__(self, root: Path, gpus: dict[str, str], *, vgpu_host: bool = True) -> None:
        self.root = root
        self.state = root / "nvml"
        for name in ("nvidia", "pci-pf-stub", "vfio-pci"):
            self.write(f"sys/bus/pci/drivers/{name}/bind", "")
            self.write(f"sys/bus/pci/drivers/{name}/unbind", "")
        self.write("proc/sys/kernel/random/boot_id", "5b1e0e8e-0000-4000-8000-000000000001\n")
        self.write("sys/module/nvidia/version", "580.159.04\n")
        self.write("dev/kmsg", "")
        (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
        for unit in ("nvidia-vgpu-mgr.service", "nvidia-vgpud.service") if vgpu_host else ():
            self.write(f"units/{unit}", "active")
        for minor, (pf, model) in enumerate(gpus.items()):
            self._add(pf, board(model), minor, vgpu_host=vgpu_host)

    def _add(self, pf: str, model: Board, minor: int, *, vgpu_host: bool) -> None:
        device = f"sys/bus/pci/devices/{pf}"
        for name, text in {
            "vendor": "0x10de",
            "class": "0x030200",
            "device": f"0x{model.device_id:04x}",
            "subsystem_device": f"0x{model.subsystem_id:04x}",
            "driver_override": "(null)",
        }.items():
            self.write(f"{device}/{name}", f"{text}\n")
        if vgpu_host:
            self.write(f"{device}/sriov_totalvfs", f"{model.sriov_totalvfs}\n")
            self.write(f"{device}/sriov_numvfs", "0\n")
            self.write(f"proc/driver/nvidia/gpus/{pf}/unbindLock", "0\n")
        (self.root / device / "driver").symlink_to("../../drivers/nvidia")
        information = f"Model: \t\t {model.name}\nDevice Minor: \t {minor}\n"
        self.write(f"proc/driver/nvidia/gpus/{pf}/information", information)
        host_values = {"virtualization": 3, "host_vgpu_mode": 1, "mixed_size": 0}
        guest_values = {"virtualization": 1, "host_vgpu_mode": -1, "mixed_size": -1}
        values: dict[str, object] = {
            "visible": 1,
            "node": "",
            "name": model.name,
            "uuid": f"GPU-00000000-0000-0000-0000-{minor:012d}",
            "serial": f"165123000{minor:04d}",
            "mig": int(model.mig),
            "mig_current": 0,
            "mig_pending": 0,
            "persistence": 0,
            "resetless": -1 if model.resetless_mig is None else int(model.resetless_mig),
            "recovery": 0,
            "held": 0,
            "instances": "",
            **(host_values if vgpu_host else guest_values),
        }
        for name, value in values.items():
            self.write(f"nvml/gpus/{pf}/{name}", f"{value}\n" if value != "" else "")
        rows = [
            f"{_PROFILE_ENUM[p.gi_profile_id]} {p.gi_profile_id} {p.slice_count} {p.max_instances} "
            f"{p.memory_mib} {p.name} {','.join(f'{x.start}:{x.size}' for x in p.placements)}\n"
            for p in model.gi_profiles
        ]
        self.write(f"nvml/gpus/{pf}/profiles", "".join(rows))
        if vgpu_host:
            types = [
                f"{t.vgpu_type_id} {t.framebuffer_mib} {t.max_per_gpu} {t.max_per_gi} "
                f"{-1 if t.gi_profile_id is None else t.gi_profile_id} {t.name}\n"
                for t in model.vgpu_types
            ]
            self.write(f"nvml/gpus/{pf}/types", "".join(types))

    # ------------------------------------------------------------------ files

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def nvml(self, pf: str, name: str, value: object) -> None:
        self.write(f"nvml/gpus/{pf}/{name}", f"{value}\n")

    def read_nvml(self, pf: str, name: str) -> str:
        return (self.state / "gpus" / pf / name).read_text(encoding="utf-8").strip()

    def error(self, function: str, code: int) -> None:
        with (self.state / "errors").open("a") as file:
            file.write(f"{function} {code}\n")

    def hang(self, function: str) -> None:
        with (self.state / "hangs").open("a") as file:
            file.write(f"{function}\n")

    def fail_write(self, attribute: str, number: int, times: int) -> None:
        with (self.root / "errno").open("a") as file:
            file.write(f"{attribute} {number} {times:3d}\n")

    @property
    def calls(self) -> list[str]:
        path = self.state / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def vf_types(self, pf: str) -> dict[int, int]:
        device = self.root / "sys/bus/pci/devices" / pf
        found = {}
        for link in device.glob("virtfn*"):
            type_id = int((link / "nvidia/current_vgpu_type").read_text())
            if type_id:
                found[int(link.name.removeprefix("virtfn"))] = type_id
        return found

    # ------------------------------------------------------------------ processes

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{_TOOLS}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(nvml_library().parent),
            "LD_PRELOAD": str(_built(_HERE / "attributes.c", "attributes.so", "-ldl")),
            "FAKE_ROOT": str(self.root),
            "FAKE_NVML_STATE": str(self.state),
            "PYTHONPATH": str(_REPO),
            "NO_COLOR": "1",
        }

    def command(
        self, *arguments: str, config: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`gpu-bootstate` on this host, in a process of its own."""
        words = [sys.executable, "-m", "gpu_bootstate", "--root", str(self.root)]
        if config is not None:
            self.write("etc/gpu-bootstate/config.yaml", config)
        return subprocess.run(  # noqa: S603  # ourselves
            [*words, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def json(self, *arguments: str, config: str | None = None) -> dict[str, Any]:
        done = self.command(*arguments, "--format", "json", config=config)
        assert done.stdout, done.stderr
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value

    def hardware(self, **limits: float) -> RemoteHardware:
        return RemoteHardware(self, limits)


class RemoteHardware:
    """RealHardware in a process that has the library and the attributes; calls go there."""

    def __init__(self, host: Host, limits: dict[str, float]) -> None:
        command = [sys.executable, "-m", "tests.support.host", str(host.root), json.dumps(limits)]
        self._process = subprocess.Popen(  # noqa: S603  # ourselves
            command, env=host.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            _send(self._process.stdin, (name, arguments, named))
            value, error = _receive(self._process.stdout)
            if error is not None:
                kind, operation, target, detail, number, waited_s = error
                raise HardwareError(
                    kind, operation, target=target, detail=detail, errno=number, waited_s=waited_s
                )
            return value

        return call

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> int:
        """Close it and end the process; its exit status."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        status = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status


def _send(stream: Any, value: object) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()


def _receive(stream: Any) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("!I", head)[0]))  # noqa: S301  # ourselves


def _serve() -> None:
    from gpu_bootstate.hardware.protocol import CallLimits
    from gpu_bootstate.hardware.real import RealHardware

    root, limits = Path(sys.argv[1]), json.loads(sys.argv[2])
    hw = RealHardware(root, limits=CallLimits(**limits), sriov_manage=str(_TOOLS / "sriov-manage"))
    while True:
        try:
            name, arguments, named = _receive(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer: tuple[Any, Any] = (getattr(hw, name)(*arguments, **named), None)
        except HardwareError as err:
            error = (err.kind, err.operation, err.target, err.detail, err.errno, err.waited_s)
            answer = (None, error)
        _send(sys.stdout.buffer, answer)
    hw.close()


SRIOV_MANAGE = str(_TOOLS / "sriov-manage")


def bdf(text: str) -> Bdf:
    return Bdf.parse(text)


if __name__ == "__main__":
    _serve()
