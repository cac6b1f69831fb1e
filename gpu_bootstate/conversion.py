"""Layouts of other tools to a configuration of ours, with comments where something is lost. Pure.

Which GPUs to touch is never inferred: `devices: all` without a filter becomes addresses where the
GPUs are known, and a comment where not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpu_bootstate.config_sections import PROFILE_NAME
from gpu_bootstate.importers import Card, Filter, Named, Rule
from gpu_bootstate.problems import nearest


class UnknownName(Exception):
    """``known`` are those that the file has; the text is a sentence."""

    def __init__(self, asked: str, known: Sequence[str]) -> None:
        close = nearest(asked, known)
        hint = f" Did you mean {close}?" if close else ""
        some = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        super().__init__(f"There is no layout {asked} in it.{hint} It has: {some or 'none'}.")


def converted(
    layouts: Sequence[Named], selected: str | None, cards: Sequence[Card], source: str
) -> str:
    """A configuration with a profile for every entry, and ``gpus`` for the layout selected; the
    only one is selected already. Raises UnknownName.
    """
    names = [layout.name for layout in layouts]
    if selected is not None and selected not in names:
        raise UnknownName(selected, names)
    if selected is None and len(layouts) == 1:
        selected = layouts[0].name
    lines = [f"# From {source}", "version: v1"]
    profiles: list[str] = []
    gpus: list[str] = []
    taken: set[str] = set()
    for layout in layouts:
        known = [_profile_name(layout, number, taken) for number in range(len(layout.rules))]
        for name, rule in zip(known, layout.rules, strict=True):
            profiles += [f"  # {name}: {note}" for note in rule.notes]
            if rule.body is not None:
                profiles.append(f"  {name}: {{{rule.body}}}")
        if layout.name == selected:
            gpus = list(_entries(layout, known, cards))
    if any(line.lstrip().partition(": {mig:")[1] for line in profiles):
        lines.append(
            "# Compute instances are left to the guests; `compute-instances: true` makes them."
        )
    if profiles:
        keep = any(not line.lstrip().startswith("#") for line in profiles)
        lines += ["profiles:" if keep else "profiles: {}", *profiles]
    if selected is None and layouts:
        gpus = ["  # Select one of the layouts above with --select, or name the GPUs here."]
    keep = any(not line.lstrip().startswith("#") for line in gpus)
    lines += ["gpus:" if keep else "gpus: []", *gpus]
    return "".join(f"{line}\n" for line in lines)


def _profile_name(layout: Named, number: int, taken: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", layout.name).lstrip("._+-")[:50] or "layout"
    if len(layout.rules) > 1:
        name = f"{name}-{number + 1}"
    while name in taken or not PROFILE_NAME.fullmatch(name):
        name = f"{name}x"
    taken.add(name)
    return name


def _entries(layout: Named, names: Sequence[str], cards: Sequence[Card]) -> Iterable[str]:
    """Of two that name the same GPU the later one holds, as in these tools."""
    if cards:
        of_gpu = {
            pf: number for number, rule in enumerate(layout.rules) for pf in rule.cards(cards)
        }
        for number, rule in enumerate(layout.rules):
            pfs = sorted(pf for pf, holds in of_gpu.items() if holds == number)
            if not pfs:
                yield f"  # {names[number]}: no GPU here, or a later entry has them all"
            elif rule.body is not None:
                listed = ", ".join(f'"{pf}"' for pf in pfs)
                yield from _entry(f"pci: [{listed}]", names[number])
        return
    later: set[Filter | int] = set()
    told: list[list[str]] = []
    for number in reversed(range(len(layout.rules))):
        told.append(list(_unplaced(layout.rules[number], names[number], later)))
    for lines in reversed(told):
        yield from lines


def _unplaced(rule: Rule, name: str, later: set[Filter | int]) -> Iterable[str]:
    """Without knowing the GPUs. ``later`` is what entries after this one name."""
    if rule.body is None:
        return
    if rule.filters is None and rule.devices is None:
        yield f"  # {name} is for all GPUs, and which to touch is never inferred. Name them:"
        yield from _commented(_entry('pci: ["0000:17:00.0"]', name))
    elif rule.filters is None and rule.devices is not None:
        indexes = [index for index in rule.devices if index not in later and index < 64]
        later.update(rule.devices)
        if indexes:
            yield "  # An index may be another GPU after each boot; on the node you get addresses."
            yield from _entry(f"index: {indexes}", name)
    elif rule.devices is not None:
        yield f"  # {name}: indexes {list(rule.devices)} of some models. Name the GPUs:"
        yield from _commented(_entry('pci: ["0000:17:00.0"]', name))
    else:
        for each in rule.filters or ():
            if each in later:
                yield f"  # {name}: a later entry has device 0x{each.device_id:04x}"
                continue
            later.add(each)
            more = "" if each.subsystem_id is None else f', subsystem: "0x{each.subsystem_id:04x}"'
            yield from _entry(f'device: "0x{each.device_id:04x}"{more}', name)


def _entry(match: str, profile: str) -> Iterable[str]:
    yield f"  - match: {{{match}}}"
    yield f"    profile: {profile}"


def _commented(lines: Iterable[str]) -> Iterable[str]:
    return (f"  #{line[1:]}" for line in lines)
