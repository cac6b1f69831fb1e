"""The sections of a configuration file, each as a function from its node to frozen data.

One file at a time; `config` puts files together. What only a GPU can answer (whether a layout
fits, whether a type exists) is not asked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gpu_bootstate.config_values import Reader
from gpu_bootstate.model import (
    STATE_LABELS,
    Bdf,
    GateFile,
    Kubernetes,
    Mark,
    MatchItem,
    MatchKind,
    MigRequest,
    Mode,
    OnMissing,
    Policy,
    Profile,
    VgpuRequest,
)
from gpu_bootstate.yaml_marks import Items, Node, Scalar, Table, join, shown

MAX_PER_GPU = 64  # the driver counts a GPU's VFs in one 64-bit mask (host-interfaces.md 1.7)

POLICY_KEYS = (
    "deadline",
    "manager-wait",
    "vf-wait",
    "tool-timeout",
    "reset-timeout",
    "call-timeout",
    "read-timeout",
    "attempts",
    "backoff",
    "backoff-max",
    "parallel",
    "holders",
    "on-conflict",
    "gate",
    "allow-fewer-vfs",
    "reboot",
    "sriov-manage",
)
ENTRY_KEYS = ("match", "profile", "on-missing")
PROFILE_KEYS = ("mode", "mig", "vgpus", "mixed-size", "compute-instances")
MATCH_KEYS = ("pci", "uuid", "serial", "device", "index", "subsystem", "count")

PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}")

# host-interfaces.md 4.1; several attributes are separated by commas.
MIG_PROFILE = re.compile(
    r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-](?:me\.all|me|gfx)(?:,[+-]?(?:me\.all|me|gfx))*)?"
)
_MIG_WANT = "a GPU instance profile such as 1g.18gb or 1g.18gb+me"
# Time-sliced <GPU>-<GB><series>, MIG-backed <GPU>-<slices>-<GB><series>[suffix]; 4.1 again.
VGPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,80}-[0-9]{1,4}[A-Za-z]{1,8}")
_VGPU_WANT = "a vGPU type's name such as H200X-141C or H200X-1-18C"
_COUNT_WANT = f"a whole number from 1 to {MAX_PER_GPU}, or no such line"

# We write and remove gate files as root: none of our own, none of the kernel's.
FORBIDDEN_DIRS = (
    "/run/gpu-bootstate",
    "/var/run/gpu-bootstate",
    "/etc/gpu-bootstate",
    "/var/lib/gpu-bootstate",
    "/proc",
    "/sys",
    "/dev",
)

MatchKey: TypeAlias = "tuple[MatchKind, Bdf | str | int, int | None]"


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry whose profile may be one of a file not read yet. None: there, but wrong."""

    match: tuple[MatchItem, ...] | None
    profile: Profile | Scalar | None
    on_missing: OnMissing
    mark: Mark
    path: str

    @property
    def keys(self) -> frozenset[MatchKey]:
        """What the match names, whatever the order and the expected count."""
        return frozenset(match_key(item) for item in self.match or ())


# --------------------------------------------------------------------------- gpus


def entries(reader: Reader, node: Node, path: str) -> list[Draft]:
    found = (
        _draft(reader, item, place) for place, item in reader.items(node, path, "a list of entries")
    )
    return [draft for draft in found if draft is not None]


def _draft(reader: Reader, node: Node, path: str) -> Draft | None:
    table = reader.table(node, path, ENTRY_KEYS)
    if table is None:
        return None
    for key in ("match", "profile"):
        if table.get(key) is None:
            reader.problems.add(table.mark, path, f"the key {key} is missing")
    match_node, profile_node = table.get("match"), table.get("profile")
    match = None if match_node is None else _match(reader, match_node, f"{path}.match")
    profile: Profile | Scalar | None = None
    below = f"{path}.profile"
    if isinstance(profile_node, Table):
        profile = _profile(reader, profile_node, below, below, table.mark_of("profile"))
    elif profile_node is not None:
        profile = reader.scalar(
            profile_node, below, "the name of a profile, or a mapping as in profiles"
        )
    on_missing = reader.choice_field(table, path, "on-missing", OnMissing.FAIL)
    return Draft(match, profile, on_missing, table.mark, path)


def _match(reader: Reader, node: Node, path: str) -> tuple[MatchItem, ...] | None:
    table = reader.table(node, path, MATCH_KEYS)
    if table is None:
        return None
    want = "exactly one of pci, uuid, serial, device and index"
    kinds = [kind for kind in MatchKind if table.get(kind.value) is not None]
    if len(kinds) != 1:
        names = " and ".join(kind.value for kind in kinds)
        reader.problems.add(
            table.mark, path, f"names {names} at once" if kinds else "names no GPU", want=want
        )
    if MatchKind.DEVICE not in kinds:
        for key in ("subsystem", "count"):
            if table.get(key) is not None:
                reader.problems.add(table.mark_of(key), path, f"{key} goes with device only")
    found = [
        item
        for kind in kinds
        if (value := table.get(kind.value)) is not None
        for item in _match_items(reader, table, kind, value, join(path, kind.value))
    ]
    return tuple(found) if len(kinds) == 1 and found else None


def _match_items(
    reader: Reader, table: Table, kind: MatchKind, node: Node, path: str
) -> list[MatchItem]:
    if kind is MatchKind.DEVICE:
        device_id = reader.hex_id(node, path)
        above = path.removesuffix(".device")
        subsystem = reader.field(table, above, "subsystem", reader.hex_id, None)
        counted = partial(reader.integer, lowest=1, highest=MAX_PER_GPU)
        count = reader.field(table, above, "count", counted, None)
        if device_id is None:
            return []
        return [MatchItem(kind, device_id, node.mark, subsystem=subsystem, count=count)]
    items: list[MatchItem] = []
    for place, single in reader.one_or_more(node, path, "one value or a list of them"):
        value: Bdf | str | int | None
        if kind is MatchKind.PCI:
            value = reader.pci(single, place)
        elif kind is MatchKind.UUID:
            value = reader.uuid(single, place)
        elif kind is MatchKind.SERIAL:
            value = reader.serial(single, place)
        else:
            value = reader.integer(single, place, 0, 63)
        if value is not None:
            items.append(MatchItem(kind, value, single.mark))
    return items


def match_key(item: MatchItem) -> MatchKey:
    return item.kind, item.value, item.subsystem


def match_text(item: MatchItem) -> str:
    if item.kind is MatchKind.DEVICE:
        rest = "" if item.subsystem is None else f" with subsystem 0x{item.subsystem:04x}"
        return f"device 0x{item.value:04x}{rest}"
    if item.kind is MatchKind.PCI:
        return str(item.value)
    return f"{item.kind.value} {item.value}"


# --------------------------------------------------------------------------- profiles


def profiles(reader: Reader, node: Node, path: str) -> Iterator[tuple[str, Profile | None]]:
    """Every named profile; None for one that is there and wrong."""
    table = reader.table(node, path)
    for key, value in table.rows if table else ():
        if not PROFILE_NAME.fullmatch(key.text):
            message = f"{shown(key.text)} is no name for a profile"
            want = "letters, digits, dots, dashes and +, 63 at most"
            reader.problems.add(key.mark, path, message, want=want)
        yield key.text, _profile(reader, value, join(path, key.text), key.text, key.mark)


def _profile(reader: Reader, node: Node, path: str, name: str, mark: Mark) -> Profile | None:
    before = len(reader.problems)
    table = reader.table(node, path, PROFILE_KEYS)
    if table is None:
        return None
    mode = reader.choice_field(table, path, "mode", Mode.VGPU)
    profile = Profile(
        name=name,
        mode=mode,
        mig=reader.field(table, path, "mig", partial(_mig, reader), None),
        vgpus=reader.field(table, path, "vgpus", partial(_vgpus, reader), ()),
        mixed_size=reader.field(table, path, "mixed-size", reader.boolean, default=False),
        compute_instances=reader.field(
            table, path, "compute-instances", reader.boolean, default=False
        ),
        mark=mark,
    )
    if mode is not Mode.VGPU:
        for key, _ in table.rows:
            if key.text != "mode" and key.text in PROFILE_KEYS:
                message = f"mode {mode.value} leaves the GPU bare; it cannot have {key.text}"
                reader.problems.add(key.mark, path, message)
    elif len(reader.problems) > before:
        pass  # what the profile says is not known, so nothing can be missing in it
    elif not any(table.get(key) for key in ("mode", "mig", "vgpus")):
        message = "the profile does not say what the GPU is to be"
        reader.problems.add(mark, path, message, want="mig, vgpus or mode")
    elif profile.mixed_size and table.get("vgpus") is None:
        message = "mixed-size concerns vGPUs, and there are none"
        reader.problems.add(table.mark_of("mixed-size"), path, message, want="vgpus, too")
    return profile if len(reader.problems) == before else None


def _mig(reader: Reader, node: Node, path: str) -> tuple[MigRequest, ...]:
    found = _requests(reader, node, path, "placement start")
    for key, _, _ in found:
        _check_mig_name(reader, key, path)
    return tuple(MigRequest(key.text, count, starts, key.mark) for key, count, starts in found)


def _vgpus(reader: Reader, node: Node, path: str) -> tuple[VgpuRequest, ...]:
    found = _requests(reader, node, path, "VF index")
    for key, _, _ in found:
        _check_type_name(reader, key, path)
    return tuple(VgpuRequest(key.text, count, vfs, key.mark) for key, count, vfs in found)


def _requests(
    reader: Reader, node: Node, path: str, position: str
) -> list[tuple[Scalar, int, tuple[int, ...]]]:
    """Rows ``name: count`` or ``name: [position, ...]``; a wrong number counts as 1."""
    table = reader.table(node, path)
    if table is None:
        return []
    if not table.rows:
        reader.problems.add(table.mark, path, "is empty", want="at least one, or no such key")
    taken: dict[int, Mark] = {}
    found: list[tuple[Scalar, int, tuple[int, ...]]] = []
    for key, value in table.rows:
        below = join(path, key.text)
        if not isinstance(value, Items):
            count = reader.integer(value, below, 1, MAX_PER_GPU, want=_COUNT_WANT)
            found.append((key, count or 1, ()))
            continue
        positions: list[int] = []
        for place, item in reader.one_or_more(value, below, f"{position}s"):
            number = reader.integer(item, place, 0, MAX_PER_GPU - 1)
            if number is None:
                continue
            if number in taken:
                message = f"{position} {number} is taken already, at {taken[number]}"
                reader.problems.add(item.mark, place, message, want=f"each {position} once")
            taken.setdefault(number, item.mark)
            positions.append(number)
        found.append((key, len(positions), tuple(positions)))
    return found


def _check_mig_name(reader: Reader, key: Scalar, path: str) -> None:
    if MIG_PROFILE.fullmatch(key.text):
        return
    message = f"{shown(key.text)} is no MIG profile"
    plain = key.text.casefold().replace(" ", "").removeprefix("mig")
    if re.match("[0-9]+c[.]", plain):
        message = f"{shown(key.text)} is a compute instance, which a guest makes for itself"
        plain = plain.partition(".")[2]
    if not plain.endswith("gb") and MIG_PROFILE.fullmatch(f"{plain}gb"):
        plain += "gb"
    meant = plain if MIG_PROFILE.fullmatch(plain) else None
    reader.problems.add(key.mark, path, message, want=_MIG_WANT, meant=meant)


def _check_type_name(reader: Reader, key: Scalar, path: str) -> None:
    if VGPU_TYPE.fullmatch(key.text):
        return
    message = f"{shown(key.text)} is no vGPU type"
    if re.fullmatch("(nvidia-)?[0-9]+", key.text):
        message = f"{shown(key.text)} is a type's number, which changes with the driver"
    reader.problems.add(key.mark, path, message, want=_VGPU_WANT)


# --------------------------------------------------------------------------- policy


def policy(reader: Reader, table: Table, path: str, base: Policy) -> Policy:
    """``base`` with the values that this file gives."""

    def seconds(key: str, default: float) -> float:
        return reader.field(table, path, key, reader.duration, default)

    def number(key: str, default: int, highest: int) -> int:
        return reader.field(
            table, path, key, partial(reader.integer, lowest=1, highest=highest), default
        )

    return Policy(
        deadline_s=seconds("deadline", base.deadline_s),
        manager_wait_s=seconds("manager-wait", base.manager_wait_s),
        vf_wait_s=seconds("vf-wait", base.vf_wait_s),
        tool_s=seconds("tool-timeout", base.tool_s),
        reset_s=seconds("reset-timeout", base.reset_s),
        call_s=seconds("call-timeout", base.call_s),
        read_s=seconds("read-timeout", base.read_s),
        attempts=number("attempts", base.attempts, 100),
        backoff_s=seconds("backoff", base.backoff_s),
        backoff_max_s=seconds("backoff-max", base.backoff_max_s),
        parallel=number("parallel", base.parallel, 64),
        stop_units=reader.field(table, path, "holders", partial(_holders, reader), base.stop_units),
        on_conflict=reader.choice_field(table, path, "on-conflict", base.on_conflict),
        gate=reader.choice_field(table, path, "gate", base.gate),
        allow_fewer_vfs=reader.field(
            table, path, "allow-fewer-vfs", reader.boolean, base.allow_fewer_vfs
        ),
        reboot=reader.choice_field(table, path, "reboot", base.reboot),
        sriov_manage=reader.field(table, path, "sriov-manage", reader.file_path, base.sriov_manage),
    )


def _holders(reader: Reader, node: Node, path: str) -> tuple[str, ...] | None:
    """``refuse`` or ``{stop: [units]}``: the units, in the order in which they are stopped."""
    want = "refuse or {stop: [a unit, ...]}"
    if not isinstance(node, Table):
        word = reader.scalar(node, path, want)
        if word is not None and word.text != "refuse":
            reader.refuse(word, path, want, known=("refuse",))
        return ()
    reader.table(node, path, ("stop",))
    stop = node.get("stop")
    if stop is None:
        reader.problems.add(node.mark, path, "the key stop is missing", want=want)
        return None
    units: list[str] = []
    for place, item in reader.one_or_more(stop, f"{path}.stop", "a list of units"):
        unit = reader.unit(item, place)
        if unit in units:
            reader.problems.add(item.mark, place, f"{unit} is listed twice", want="each unit once")
        elif unit is not None:
            units.append(unit)
    return tuple(units)


# --------------------------------------------------------------------------- gate

# What the GPU Operator's sandbox path waits for, in the order of writing: its device plugin starts
# on the last one (operator-path.md 2.2, 2.3, 5.6).
_VALIDATIONS = "/run/nvidia/validations"
PRESETS = {
    "gpu-operator": (
        ("workload-type", "vm-vgpu\n"),
        ("host-vgpu-manager-ready", ""),
        ("vgpu-devices-ready", ""),
    ),
    "none": (),
}


def gate_preset(reader: Reader, node: Node, path: str) -> tuple[GateFile, ...]:
    name = reader.word(node, path, tuple(PRESETS))
    files = PRESETS[name] if name else ()
    return tuple(GateFile(f"{_VALIDATIONS}/{file}", text, node.mark) for file, text in files)


def gate_files(reader: Reader, node: Node, path: str) -> tuple[GateFile, ...]:
    files: dict[str, GateFile] = {}
    want = "a list of absolute paths, or of mappings with path and content"
    for place, item in reader.items(node, path, want):
        content = ""
        path_node: Node | None = item
        below = place
        if isinstance(item, Table):
            table = reader.table(item, place, ("path", "content"))
            path_node = item.get("path")
            below = f"{place}.path"
            if table is not None:
                content = reader.field(table, place, "content", reader.content, "")
        if path_node is None:
            reader.problems.add(item.mark, place, "the key path is missing")
            continue
        name = reader.file_path(path_node, below)
        if name is None:
            continue
        for forbidden in FORBIDDEN_DIRS:
            if f"{name}/".startswith(f"{forbidden}/"):
                message = f"{shown(name)} is inside {forbidden}, where gate files cannot be"
                reader.problems.add(path_node.mark, below, message)
        if name in files:
            message = f"{shown(name)} is listed twice, first at {files[name].mark}"
            reader.problems.add(path_node.mark, below, message, want="each file once")
        else:
            files[name] = GateFile(name, content, path_node.mark)
    return tuple(files.values())


# --------------------------------------------------------------------------- kubernetes

KUBERNETES_KEYS = (
    "publish",
    "features",
    "kubeconfig",
    "node-name",
    "state-label",
    "operands",
    "restart",
)
# Operands that a vm-vgpu node can have (operator-path.md 2.1).
OPERANDS = (
    "sandbox-device-plugin",
    "sandbox-validator",
    "vgpu-device-manager",
    "vgpu-manager",
    "cc-manager",
)
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SELECTOR = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def kubernetes(reader: Reader, node: Node, path: str, base: Kubernetes) -> Kubernetes:
    table = reader.table(node, path, KUBERNETES_KEYS)
    if table is None:
        return base
    name = partial(reader.matching, pattern=NODE_NAME, want="the name of the Node")
    selector = partial(reader.matching, pattern=SELECTOR, want="a label of pods such as app=name")
    label = partial(reader.word, choices=tuple(STATE_LABELS))
    operand = partial(reader.word, choices=OPERANDS)
    return Kubernetes(
        publish=reader.field(table, path, "publish", reader.boolean, base.publish),
        features=reader.field(table, path, "features", reader.boolean, base.features),
        kubeconfig=reader.field(table, path, "kubeconfig", reader.file_path, base.kubeconfig),
        node_name=reader.field(table, path, "node-name", name, base.node_name),
        state_label=reader.field(table, path, "state-label", label, base.state_label),
        operands=reader.field(table, path, "operands", _each(reader, operand), base.operands),
        restart=reader.field(table, path, "restart", _each(reader, selector), base.restart),
    )


def _each(
    reader: Reader, read: Callable[[Node, str], str | None]
) -> Callable[[Node, str], tuple[str, ...]]:
    """A list, perhaps empty, of what ``read`` takes."""

    def words(node: Node, path: str) -> tuple[str, ...]:
        items = reader.items(node, path, "a list")
        return tuple(word for place, item in items if (word := read(item, place)) is not None)

    return words
