"""Files of mig-parted, vgpu-device-manager and mdevctl, read as they are. Pure.

Formats: mig-parted `api/spec/v1`, vgpu-device-manager `api/spec/v1` (operator-path.md 1.1),
ConfigMaps that wrap either, and mdevctl's JSON. What these tools accept is accepted; what no
profile of ours can say is left out with a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpu_bootstate.config_sections import MAX_PER_GPU, MIG_PROFILE, VGPU_TYPE
from gpu_bootstate.config_values import Reader
from gpu_bootstate.model import Bdf
from gpu_bootstate.problems import ProblemList
from gpu_bootstate.yaml_marks import Items, Node, Scalar, Table, join, read, shown

_KINDS = {"mig-configs": "mig-parted", "vgpu-configs": "vgpu-device-manager"}
_ENTRY_KEYS = {
    "mig-configs": ("device-filter", "devices", "mig-enabled", "mig-devices"),
    "vgpu-configs": ("device-filter", "devices", "vgpu-devices"),
}
_FILTER = re.compile(
    r"0x(?P<device>[0-9a-f]{4})10de(?::0x(?P<subsystem>[0-9a-f]{4})[0-9a-f]{4})?", re.IGNORECASE
)
# host-interfaces.md 4.1; `0g` and sizes that no board has are well formed.
_MIG_DEVICE = re.compile(
    r"(?:(?P<compute>\d+)c\.)?(?P<instance>(?P<slices>\d+)g\.\d+gb"
    r"(?:[+-](?:me\.all|me|gfx)(?:,[+-]?(?:me\.all|me|gfx))*)?)"
)
_MDEV_TYPE = re.compile(r"nvidia-(\d+)")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of the node, or of the board, that the file is for.

    ``vfs`` by index and ``types`` (id -> name) are needed for mdevctl's definitions alone.
    """

    pf: Bdf
    device_id: int
    subsystem_id: int
    vfs: tuple[Bdf, ...] = ()
    types: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    device_id: int
    subsystem_id: int | None

    def holds(self, card: Card) -> bool:
        return self.device_id == card.device_id and self.subsystem_id in (None, card.subsystem_id)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: some GPUs, and the lines of a profile; None where no profile can say it.

    ``filters`` None: there is none; ``devices`` None: all, else indexes in PCI order
    (operator-path.md 1.1).
    """

    filters: tuple[Filter, ...] | None
    devices: tuple[int, ...] | None
    body: str | None
    notes: tuple[str, ...] = ()
    addresses: tuple[Bdf, ...] = ()  # mdevctl names them

    def cards(self, cards: Sequence[Card]) -> list[Bdf]:
        if self.addresses:
            return list(self.addresses)
        return [
            card.pf
            for index, card in enumerate(sorted(cards, key=lambda each: each.pf))
            if (self.devices is None or index in self.devices)
            and (self.filters is None or any(each.holds(card) for each in self.filters))
        ]


@dataclass(frozen=True, slots=True)
class Named:
    name: str
    kind: str  # the tool
    rules: tuple[Rule, ...]


# --------------------------------------------------------------------------- reading


def read_layouts(text: str, name: str, cards: Sequence[Card] = ()) -> tuple[Named, ...]:
    """Every named layout of a file; ``name`` is how marks call it. Raises ConfigInvalid."""
    problems = ProblemList()
    found: list[Named] = []
    if (devices := _mdevctl(text, name)) is not None:
        found.append(Named("mdevctl", "mdevctl", tuple(_mdev_rules(devices, cards))))
    else:
        _documents(text, name, problems, found)
    problems.raise_if_any([name])
    return tuple(found)


def _documents(text: str, name: str, problems: ProblemList, found: list[Named]) -> None:
    # JSON may be indented with tabs, YAML may not.
    root = read(text.expandtabs(4) if text.lstrip().startswith("{") else text, name, problems)
    if not isinstance(root, Table):
        if root is not None and not len(problems):
            problems.add(root.mark, "", "is no file of mig-parted or vgpu-device-manager")
        return
    kind = root.get("kind")
    if isinstance(kind, Scalar) and kind.text == "ConfigMap":
        data = root.get("data")
        for key, value in data.rows if isinstance(data, Table) else ():
            if isinstance(value, Scalar) and any(word in value.text for word in _KINDS):
                _documents(value.text, f"{name}#{key.text}", problems, found)
        return
    reader = Reader(problems)
    table = reader.table(root, "", ("version", *_KINDS))
    if table is None:
        return
    version = table.get("version")
    if version is None:
        problems.add(table.mark, "", "the key version is missing", want="version: v1")
    elif reader.word(version, "version", ("v1",)) is None:
        return
    for section, tool in _KINDS.items():
        if (node := table.get(section)) is not None:
            found += _configs(reader, node, section, tool)


def _configs(reader: Reader, node: Node, key: str, tool: str) -> Iterable[Named]:
    table = reader.table(node, key)
    if table is not None and not table.rows:
        reader.problems.add(table.mark, key, "is empty", want="at least one layout")
    for label, value in table.rows if table else ():
        path = join(key, label.text)
        items = reader.items(value, path, "a list of entries")
        if isinstance(value, Items) and not items:
            reader.problems.add(value.mark, path, "is empty", want="at least one entry")
        rules = [_rule(reader, item, place, key) for place, item in items]
        yield Named(label.text, tool, tuple(rule for rule in rules if rule is not None))


def _rule(reader: Reader, node: Node, path: str, kind: str) -> Rule | None:
    table = reader.table(node, path, _ENTRY_KEYS[kind])
    if table is None:
        return None
    needed = ("devices", "mig-enabled") if kind == "mig-configs" else ("devices", "vgpu-devices")
    for key in needed:
        if table.get(key) is None:
            reader.problems.add(table.mark, path, f"the key {key} is missing")
    notes: list[str] = []
    filters = _filters(reader, table, path, notes)
    devices = _devices(reader, table, path)
    if kind == "mig-configs":
        body = _mig_body(reader, table, path, notes)
    else:
        body = _vgpu_body(reader, table, path, notes)
    return Rule(filters, devices, body, tuple(notes))


def _filters(
    reader: Reader, table: Table, path: str, notes: list[str]
) -> tuple[Filter, ...] | None:
    node = table.get("device-filter")
    if node is None:
        return None
    below = f"{path}.device-filter"
    want = "a device id such as 0x233510DE, or a list of them"
    items = reader.items(node, below, want) if isinstance(node, Items) else [(below, node)]
    found = []
    texts = [reader.scalar(item, place, want) for place, item in items]
    if all(text is not None and not text.text for text in texts):
        return None  # an empty one filters nothing
    for text in texts:
        if text is None:
            continue
        if (matched := _FILTER.fullmatch(text.text)) is None:
            notes.append(f"the filter {shown(text.text)} matches no GPU, and is left out")
            continue
        subsystem = matched["subsystem"]
        found.append(Filter(int(matched["device"], 16), int(subsystem, 16) if subsystem else None))
    return tuple(found)


def _devices(reader: Reader, table: Table, path: str) -> tuple[int, ...] | None:
    node = table.get("devices")
    below = f"{path}.devices"
    if node is None:
        return None
    if not isinstance(node, Items):
        reader.word(node, below, ("all",))
        return None
    numbers = (
        reader.integer(item, place, 0, 4095) for place, item in reader.items(node, below, "")
    )
    return tuple(number for number in numbers if number is not None)


def _mig_body(reader: Reader, table: Table, path: str, notes: list[str]) -> str | None:
    enabled = table.get("mig-enabled")
    on = None if enabled is None else reader.boolean(enabled, f"{path}.mig-enabled")
    node = table.get("mig-devices")
    below = f"{path}.mig-devices"
    rows = _counts(reader, node, below)
    if on and node is None:
        reader.problems.add(table.mark, path, "mig-enabled without mig-devices")
    if on is False:
        if rows:
            message = "mig-devices where mig-enabled is false"
            reader.problems.add(table.mark_of("mig-devices"), path, message)
        notes.append("MIG off: the GPU goes back to bare; `mode: vgpu` would give it VFs")
        return "mode: none"
    instances: dict[str, int] = {}
    for name, count in rows:
        matched = _MIG_DEVICE.fullmatch(name.text)
        if matched is None:
            message = f"{shown(name.text)} is no MIG device"
            reader.problems.add(name.mark, below, message, want="one such as 1g.18gb or 1g.18gb+me")
            continue
        profile, slices = matched["instance"], int(matched["slices"])
        if matched["compute"] is not None:
            per_instance = max(slices // max(int(matched["compute"]), 1), 1)
            notes.append(
                f"{name.text}: {count} becomes the GPU instances for them; guests make the compute "
                "instances"
            )
            count = -(-count // per_instance)
        if count and not MIG_PROFILE.fullmatch(profile):
            notes.append(f"{name.text}: no board has such a profile, and it is left out")
        elif count:
            instances[profile] = instances.get(profile, 0) + count
    if any(count > MAX_PER_GPU for count in instances.values()):
        notes.append("more GPU instances than any board has: the layout is left out")
        return None
    if not instances:
        notes.append("MIG mode without GPU instances is nothing that a profile can say")
        return None
    listed = ", ".join(f'"{name}": {count}' for name, count in instances.items())
    return f"mig: {{{listed}}}"


def _vgpu_body(reader: Reader, table: Table, path: str, notes: list[str]) -> str | None:
    below = f"{path}.vgpu-devices"
    rows = _counts(reader, table.get("vgpu-devices"), below, lowest=1)
    wanted: list[str] = []
    for name, count in rows:
        if not VGPU_TYPE.fullmatch(name.text):
            message = f"{shown(name.text)} is no vGPU type"
            reader.problems.add(name.mark, below, message, want="one such as H200X-141C")
        elif count > MAX_PER_GPU:
            notes.append(f"{count} x {name.text} is more than any GPU can have: left out")
        else:
            wanted.append(f'"{name.text}": {count}')
    if rows and not wanted:
        return None
    return f"vgpus: {{{', '.join(wanted)}}}" if wanted else "mode: vgpu"


def _counts(
    reader: Reader, node: Node | None, path: str, lowest: int = 0
) -> list[tuple[Scalar, int]]:
    table = None if node is None else reader.table(node, path)
    found = []
    for key, value in table.rows if table else ():
        count = reader.integer(value, join(path, key.text), lowest, 1_000_000)
        if count is not None:
            found.append((key, count))
    return found


# --------------------------------------------------------------------------- mdevctl


def _mdevctl(text: str, name: str) -> dict[str, list[str]] | None:
    """Parent -> types, of `mdevctl list --dumpjson` or of one definition file; None: neither."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, dict) and isinstance(data.get("mdev_type"), str):
        return {PurePosixPath(name).parent.name: [data["mdev_type"]]}
    found: dict[str, list[str]] = {}
    if not isinstance(data, list):
        return None
    for part in data:
        for parent, devices in part.items() if isinstance(part, dict) else ():
            for device in devices if isinstance(devices, list) else ():
                for about in device.values() if isinstance(device, dict) else ():
                    if isinstance(about, dict) and isinstance(about.get("mdev_type"), str):
                        found.setdefault(str(parent), []).append(about["mdev_type"])
    return found or None


def _mdev_rules(devices: Mapping[str, Sequence[str]], cards: Sequence[Card]) -> Iterable[Rule]:
    """One for each GPU. A type's number is the driver's of today: only the node can name it."""
    of_vf = {vf: (card, index) for card in cards for index, vf in enumerate(card.vfs)}
    wanted: dict[Bdf, dict[str, list[int]]] = {}
    notes: list[str] = []
    for parent, types in devices.items():
        try:
            card, index = of_vf[Bdf.parse(parent)]
        except (KeyError, ValueError):
            notes.append(f"{parent} is no VF here: {', '.join(types)} cannot be told by name")
            continue
        names = dict(card.types)
        for each in types:
            matched = _MDEV_TYPE.fullmatch(each)
            known = names.get(int(matched[1])) if matched else None
            if known is None:
                notes.append(f"{parent}: this driver has no type {each}")
            else:
                wanted.setdefault(card.pf, {}).setdefault(known, []).append(index)
    for pf, on in sorted(wanted.items()):
        listed = ", ".join(f'"{name}": {sorted(places)}' for name, places in on.items())
        yield Rule(None, None, f"vgpus: {{{listed}}}", (), (pf,))
    if notes:
        yield Rule((), None, None, tuple(notes))
