"""Which cards the entries of a configuration name: entries x observed node -> claims. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_bootstate.model import (
    Bdf,
    Card,
    Entry,
    GpuFacts,
    MatchItem,
    MatchKind,
    Mode,
    ObservedGpu,
    ObservedNode,
    OnMissing,
)
from gpu_bootstate.problems import Problem
from gpu_bootstate.reasons import Code, Finding

# What a PF that NVML ought to list is bound to: nvidia, or where a failed sriov-manage left it.
_OURS = frozenset({"nvidia", "pci-pf-stub", None})
_NO_CARD = Card(None, None)


@dataclass(frozen=True, slots=True)
class Claims:
    """What the entries come to. ``claimed`` is sorted by PF and names each PF once."""

    claimed: tuple[tuple[ObservedGpu, Entry], ...]
    missing: tuple[tuple[Entry, str, Finding], ...]  # on-missing: degrade
    problems: tuple[Problem, ...]
    unclaimed: tuple[Bdf, ...]  # named by nobody, and carved by somebody: said, and left alone


def match(entries: Sequence[Entry], node: ObservedNode, remembered: Mapping[Bdf, Card]) -> Claims:
    """``remembered`` is the card that each PF had when it was last read and right.

    The more precise name goes first: a ``device`` match means the cards of that model that no
    entry names by themselves, and with ``subsystem`` it comes before one without.
    """
    matcher = _Matcher(node, remembered)
    items = [(entry, item) for entry in entries for item in entry.match]
    models = [each for each in items if each[1].kind is MatchKind.DEVICE]
    for precise in (
        [each for each in items if each not in models],
        [each for each in models if each[1].subsystem is not None],
        [each for each in models if each[1].subsystem is None],
    ):
        matcher.find(precise)
    matcher.find_untouchable()
    return matcher.claims()


@dataclass
class _Matcher:
    node: ObservedNode
    remembered: Mapping[Bdf, Card]
    named: dict[Bdf, list[tuple[Entry, MatchItem]]] = field(default_factory=dict)
    unfound: list[tuple[Entry, MatchItem]] = field(default_factory=list)
    missing: list[tuple[Entry, str, Finding]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def find(self, items: Sequence[tuple[Entry, MatchItem]]) -> None:
        """Items of one precision: those before are settled, those among them may overlap."""
        settled = frozenset(self.named)
        for entry, item in items:
            found = [
                gpu
                for gpu in self.node.gpus
                if self._is_named(gpu, item)
                and not (item.kind is MatchKind.DEVICE and gpu.pf in settled)
            ]
            for gpu in found:
                self.named.setdefault(gpu.pf, []).append((entry, item))
            if item.count is not None and len(found) != item.count:
                self._wrong_count(entry, item, item.count, found)
            elif not found:
                self.unfound.append((entry, item))

    def find_untouchable(self) -> None:
        """GPUs named by what only NVML can tell, where nothing will be done to them anyway.

        Which GPU is meant is never guessed where it would be touched: a stranded card that nobody
        remembers is missing. But a card that somebody passes through is left alone, and while
        the whole driver is away that is the trouble, and not the names.
        """
        named = [
            each for each in self.unfound if each[1].kind in (MatchKind.UUID, MatchKind.SERIAL)
        ]
        unread = [gpu for gpu in self.node.gpus if gpu.facts is None and gpu.pf not in self.named]
        # Only a card that is to be passed through has business on another driver.
        passed = [each for each in named if each[0].profile.mode is Mode.PASSTHROUGH]
        away = [gpu for gpu in unread if gpu.pci.driver not in _OURS]
        if len(passed) == len(away):
            self._pair(passed, away)
            named = [each for each in named if each not in passed]
        stranded = [gpu for gpu in unread if gpu.pci.driver in _OURS]
        if self.node.driver.problem is not None and len(named) <= len(stranded):
            self._pair(named, stranded)

    def _pair(self, named: Sequence[tuple[Entry, MatchItem]], gpus: Sequence[ObservedGpu]) -> None:
        for each, gpu in zip(named, gpus, strict=False):
            self.unfound.remove(each)
            self.named[gpu.pf] = [each]

    def claims(self) -> Claims:
        for entry, item in self.unfound:
            self._not_found(entry, item)
        claimed = []
        for gpu in self.node.gpus:
            naming = self.named.get(gpu.pf, [])
            if any(entry != naming[0][0] for entry, _ in naming):
                self._overlap(gpu.pf)
            elif naming and not self._has_moved(gpu):
                claimed.append((gpu, naming[0][0]))
        return Claims(
            claimed=tuple(claimed),
            missing=tuple(self.missing),
            problems=tuple(self.problems),
            unclaimed=tuple(
                gpu.pf for gpu in self.node.gpus if gpu.pf not in self.named and _is_carved(gpu)
            ),
        )

    # ------------------------------------------------------------------ does an item name a GPU

    def _is_named(self, gpu: ObservedGpu, item: MatchItem) -> bool:
        if item.kind is MatchKind.PCI:
            return gpu.pf == item.value
        if item.kind is MatchKind.DEVICE:
            subsystem_fits = item.subsystem in (None, gpu.pci.subsystem_id)
            return gpu.pci.device_id == item.value and subsystem_fits
        if item.kind is MatchKind.INDEX:
            return self._index(gpu) == item.value
        if item.kind is MatchKind.UUID:
            return (self._card(gpu).uuid or "").casefold() == str(item.value).casefold()
        return self._card(gpu).serial == item.value

    def _card(self, gpu: ObservedGpu) -> Card:
        """What NVML says; for a card that it cannot read, the one that was there, unless that
        one can now be read elsewhere.
        """
        if gpu.facts is not None:
            return Card(gpu.facts.uuid, gpu.facts.serial)
        known = self.remembered.get(gpu.pf, _NO_CARD)
        elsewhere = any(g.facts and g.facts.uuid == known.uuid for g in self.node.gpus)
        if elsewhere or (known.serial and self._at(known.serial) is not None):
            return _NO_CARD
        return known

    def _index(self, gpu: ObservedGpu) -> int | None:
        """The NVML index the card has, or would have.

        A card that NVML cannot see moves the index of all that follow it, and an index that
        means another card than yesterday must not be acted on. As long as the others are in
        the order of their addresses, the gap is known.
        """
        expected = [g for g in self.node.gpus if g.facts or g.pci.driver in _OURS]
        indexes = [g.facts.nvml_index for g in expected if g.facts]
        if len(indexes) == len(expected):
            return gpu.facts.nvml_index if gpu.facts else None
        if indexes != sorted(indexes):
            return None
        return next((i for i, g in enumerate(expected) if g.pf == gpu.pf), None)

    def _at(self, serial: str | None) -> Bdf | None:
        """Where the card with this serial can be read now."""
        if serial is None:
            return None
        return next((g.pf for g in self.node.gpus if g.facts and g.facts.serial == serial), None)

    # ------------------------------------------------------------------ what is wrong

    def _missing(self, entry: Entry, item: MatchItem, finding: Finding, near: str | None) -> None:
        if entry.on_missing is OnMissing.DEGRADE:
            self.missing.append((entry, _text(item), finding))
        else:
            self._problem(entry, item, finding, near)

    def _problem(
        self, entry: Entry, item: MatchItem, finding: Finding, near: str | None = None
    ) -> None:
        path = f"{entry.path}.match.{item.kind.value}"
        message = finding.message.removesuffix(".")
        self.problems.append(Problem(item.mark, path, message, nearest=near, code=finding.code))

    def _wrong_count(
        self, entry: Entry, item: MatchItem, wanted: int, found: Sequence[ObservedGpu]
    ) -> None:
        finding = Finding.of(
            Code.GPU_COUNT,
            wanted=wanted,
            device=_device(item),
            found=len(found),
            slots=", ".join(str(gpu.pf) for gpu in found) or "none",
        )
        if len(found) < wanted:
            self._missing(entry, item, finding, None)
        else:
            self._problem(entry, item, finding)

    def _not_found(self, entry: Entry, item: MatchItem) -> None:
        there, near = self._there_instead(item)
        finding = Finding.of(Code.GPU_MISSING, wanted=_text(item), nearest=there)
        self._missing(entry, item, finding, near)

    def _there_instead(self, item: MatchItem) -> tuple[str, str | None]:
        """What is there, likeliest first, and the one that is probably meant."""
        gpus = self.node.gpus
        if not gpus:
            return "there is no NVIDIA GPU", None
        if isinstance(item.value, Bdf):
            wanted = item.value
            gpus = tuple(sorted(gpus, key=lambda gpu: _distance(gpu.pf, wanted)))
            moved_to = self._at(self.remembered.get(wanted, _NO_CARD).serial)
            if moved_to is not None:
                return f"the card that was there is now at {moved_to}", str(moved_to)
            there = ", ".join(str(gpu.pf) for gpu in gpus)
            near = (str(gpu.pf) for gpu in gpus if gpu.pf not in self.named)
            return f"there are {there}", next(near, None)
        if item.kind is MatchKind.DEVICE:
            ids = ", ".join(f"0x{gpu.pci.device_id:04x} at {gpu.pf}" for gpu in gpus)
            return f"there are {ids}", None
        read = [(gpu.pf, gpu.facts) for gpu in gpus if gpu.facts]
        read.sort(key=lambda each: each[0] in self.named)  # a new card is named by nobody
        free = [_identity(facts, item.kind) for pf, facts in read if pf not in self.named]
        parts = [f"{_identity(facts, item.kind)} at {pf}" for pf, facts in read]
        unread = [str(gpu.pf) for gpu in gpus if not gpu.facts and gpu.pf not in self.named]
        if unread:
            parts.append(f"{' and '.join(unread)} cannot be read")
        near_one = free[0] if len(free) == 1 and not unread else None
        return f"there are {', '.join(parts)}", near_one

    def _overlap(self, pf: Bdf) -> None:
        (first, first_item), *_ = self.named[pf]
        second, item = next(each for each in self.named[pf] if each[0] != first)
        finding = Finding.of(
            Code.GPU_OVERLAP,
            pf=pf,
            first=f"{first.path} ({first_item.mark})",
            second=f"{second.path} ({item.mark})",
        )
        self._problem(second, item, finding)

    def _has_moved(self, gpu: ObservedGpu) -> bool:
        """Named by its slot, and the card that this slot had is now in another one.

        Cards that changed places among themselves are no matter where both are to be the same.
        """
        entry, item = self.named[gpu.pf][0]
        serial = self.remembered.get(gpu.pf, _NO_CARD).serial
        here = gpu.facts.serial if gpu.facts else None
        if item.kind is not MatchKind.PCI or None in (serial, here) or serial == here:
            return False
        now = self._at(serial)
        if now is None:
            return False  # gone from the node: the card was replaced
        same = any(other.profile == entry.profile for other, _ in self.named.get(now, []))
        if same and here in {card.serial for card in self.remembered.values()}:
            return False
        finding = Finding.of(Code.GPU_MOVED, pf=gpu.pf, serial=serial, now=now)
        self._problem(entry, item, finding, str(now))
        return True


def _text(item: MatchItem) -> str:
    if item.kind is MatchKind.PCI:
        return str(item.value)
    if item.kind is MatchKind.DEVICE:
        number = "a card" if item.count is None else f"{item.count} cards"
        return f"{number} of device {_device(item)}"
    name = "UUID" if item.kind is MatchKind.UUID else item.kind.value
    return f"a GPU with {name} {item.value}"


def _device(item: MatchItem) -> str:
    subsystem = "" if item.subsystem is None else f" (subsystem 0x{item.subsystem:04x})"
    return f"0x{item.value:04x}{subsystem}"


def _identity(facts: GpuFacts, kind: MatchKind) -> str:
    if kind is MatchKind.UUID:
        return facts.uuid
    if kind is MatchKind.SERIAL:
        return facts.serial or "no serial"
    return str(facts.nvml_index)


def _distance(pf: Bdf, other: Bdf) -> tuple[int, Bdf]:
    """Near on the bus; the same distance below before above."""

    def number(bdf: Bdf) -> int:
        return ((bdf.domain << 8 | bdf.bus) << 5 | bdf.device) << 3 | bdf.function

    return abs(number(pf) - number(other)), pf


def _is_carved(gpu: ObservedGpu) -> bool:
    return bool(gpu.gpu_instances) or any(vf.vgpu_type_id for vf in gpu.vfs)
