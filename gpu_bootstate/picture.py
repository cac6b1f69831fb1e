"""Each GPU as it is and as it would be: memory slices, GPU instances, VFs and their vGPU types.

Pure: an observed node and a plan to text, or to one SVG. What would be is what the plan's steps
make of what is, so that the picture shows no more than `apply` would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from gpu_bootstate.model import (
    Bdf,
    ClearVgpuType,
    CreateGpuInstance,
    DestroyGpuInstance,
    DisableVfs,
    EnableVfs,
    GpuPlan,
    ObservedGpu,
    ObservedNode,
    Placement,
    Plan,
    ResetGpu,
    SetMigMode,
    SetVgpuType,
    Step,
)

_VENDOR = "NVIDIA "


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance: its profile's name, and the memory slices that it has."""

    profile: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class State:
    """Of one GPU. ``slices`` is 0 without MIG; ``types`` pairs a VF's index with its vGPU type."""

    mig: bool
    slices: int
    instances: tuple[Instance, ...]
    vf_count: int
    types: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class GpuPicture:
    """``then`` is None where the plan changes nothing; ``note`` says why, if that is no good."""

    pf: Bdf
    model: str
    profile: str | None
    now: State | None  # None: it cannot be read
    then: State | None
    note: str


def pictures(node: ObservedNode, plan: Plan) -> tuple[GpuPicture, ...]:
    """In the order of the addresses; GPUs that the configuration does not name are there too."""
    return tuple(_picture(gpu, plan.gpu(gpu.pf)) for gpu in sorted(node.gpus, key=lambda g: g.pf))


def _picture(gpu: ObservedGpu, plan: GpuPlan | None) -> GpuPicture:
    now = _now(gpu)
    then = None
    note = "not in the configuration, left alone"
    if plan is not None:
        note = plan.refusal.message if plan.refusal else ""
        if now is not None and plan.steps:
            then = _after(now, plan.steps, gpu)
    if now is None:
        note = gpu.findings[0].message if gpu.findings else f"its driver is {gpu.pci.driver}"
    return GpuPicture(
        pf=gpu.pf,
        model=gpu.facts.name if gpu.facts else "",
        profile=plan.profile_name if plan else None,
        now=now,
        then=then,
        note=note,
    )


def _now(gpu: ObservedGpu) -> State | None:
    if gpu.facts is None:
        return None
    profiles = {profile.gi_profile_id: profile.name for profile in gpu.gi_profiles}
    types = {each.vgpu_type_id: each.name for each in gpu.vgpu_types}
    mig = bool(gpu.facts.mig and gpu.facts.mig.current)
    instances = (
        Instance(profiles.get(gi.gi_profile_id, f"profile {gi.gi_profile_id}"), gi.placement)
        for gi in gpu.gpu_instances
    )
    return State(
        mig=mig,
        slices=_slices(gpu) if mig else 0,
        instances=tuple(sorted(instances, key=lambda each: each.placement)),
        vf_count=len(gpu.vfs),
        types=tuple(
            (vf.index, _short(types.get(vf.vgpu_type_id, f"type {vf.vgpu_type_id}")))
            for vf in sorted(gpu.vfs, key=lambda vf: vf.index)
            if vf.vgpu_type_id
        ),
    )


def _slices(gpu: ObservedGpu) -> int:
    """Memory slices: where the last placement that any profile may have ends."""
    ends = (spot.start + spot.size for each in gpu.gi_profiles for spot in each.placements)
    return max(ends, default=0)


def _short(name: str) -> str:
    return name.removeprefix(_VENDOR)


def _after(state: State, steps: Sequence[Step], gpu: ObservedGpu) -> State:
    index_of = {vf.bdf: vf.index for vf in gpu.vfs}
    for step in steps:
        types = dict(state.types)
        instances = list(state.instances)
        if isinstance(step, SetMigMode | ResetGpu | DisableVfs | EnableVfs):
            # Each of them takes instances and types with it.
            types, instances = {}, []
        if isinstance(step, SetMigMode):
            slices = _slices(gpu) or 8  # the profiles are told only while the mode is on
            state = replace(state, mig=step.enabled, slices=slices if step.enabled else 0)
        elif isinstance(step, DisableVfs):
            state = replace(state, vf_count=0)
        elif isinstance(step, EnableVfs):
            state = replace(state, vf_count=step.vf_count)
        elif isinstance(step, ClearVgpuType):
            types.pop(index_of.get(step.vf, -1), None)
        elif isinstance(step, DestroyGpuInstance):
            instances = [each for each in instances if each.placement != step.placement]
        elif isinstance(step, CreateGpuInstance):
            instances.append(Instance(step.profile_name, step.placement))
        elif isinstance(step, SetVgpuType):
            types[step.vf_index] = _short(step.type_name)
        instances.sort(key=lambda each: each.placement)
        state = replace(state, instances=tuple(instances), types=tuple(sorted(types.items())))
    return state


# --------------------------------------------------------------------------- as text


def text(gpus: Iterable[GpuPicture]) -> str:
    """For a terminal of 100 columns. A letter stands for a type, a dot for a VF without one."""
    lines: list[str] = []
    for gpu in gpus:
        head = [str(gpu.pf), _short(gpu.model), gpu.profile or ""]
        lines.append("  ".join(word for word in head if word))
        if gpu.now is not None:
            letters = _letters([gpu.now, *([gpu.then] if gpu.then else [])])
            lines += _labelled("now", _lines(gpu.now, letters))
            if gpu.then is not None:
                lines += _labelled("then", _lines(gpu.then, letters))
            elif gpu.profile is not None and not gpu.note:
                lines += _labelled("then", ["the same"])
        if gpu.note:
            lines += _labelled("", [gpu.note])
    return "".join(f"{line}\n" for line in lines)


def _letters(states: Sequence[State]) -> dict[str, str]:
    names = dict.fromkeys(name for state in states for _, name in state.types)
    return {name: chr(ord("A") + number % 26) for number, name in enumerate(names)}


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"  {label if not number else '':<5} {line}" for number, line in enumerate(lines)]


def _lines(state: State, letters: Mapping[str, str]) -> list[str]:
    lines = []
    if state.mig:
        lines.append(f"MIG  {_bar(state)}")
    if not state.vf_count:
        return [*lines, "no VFs"]
    types = dict(state.types)
    marks = "".join(letters[types[n]] if n in types else "." for n in range(state.vf_count))
    legend = [f"{letters[name]}: {count} x {name}" for name, count in _counted(state).items()]
    return [*lines, f"VFs  {marks}  {', '.join(legend) or 'no vGPUs'}"]


_CELL = 9  # columns of a memory slice: `1g.18gb+me` is cut, wider ones have more


def _bar(state: State) -> str:
    cells = ["." * _CELL] * state.slices
    for each in state.instances:
        spot = each.placement
        room = spot.size * (_CELL + 1) - 1
        cells[spot.start] = each.profile[:room].center(room)
        for covered in range(spot.start + 1, min(spot.start + spot.size, state.slices)):
            cells[covered] = ""
    return "|" + "|".join(cell for cell in cells if cell) + "|"


def _counted(state: State) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, name in state.types:
        counts[name] = counts.get(name, 0) + 1
    return counts


# --------------------------------------------------------------------------- as SVG

# Okabe and Ito's palette, lightened: told apart by those who are colour-blind too.
_COLOURS = ("#9bd0f5", "#f6c667", "#8fd6b8", "#f0a58f", "#c9b3e6", "#e6e08a", "#b8c4cc", "#f2b3d1")
_INK, _DIM, _LINE, _EMPTY = "#1f2933", "#66727f", "#c3ccd5", "#f4f6f8"
_PANEL, _GAP, _MARGIN, _HEAD = 470, 30, 20, 26
_BAR, _VF, _PER_ROW, _LEGEND = 34, 13, 32, 18
_FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


def svg(gpus: Sequence[GpuPicture]) -> str:
    """One drawing of all GPUs, what is on the left and what would be on the right."""
    colours = _assigned(gpus)
    width = 2 * _MARGIN + 2 * _PANEL + _GAP
    parts: list[str] = []
    y = _MARGIN + 14
    for x, words in ((_MARGIN, "as it is"), (_MARGIN + _PANEL + _GAP, "as it would be")):
        parts.append(_text(x, y, words, size=13, colour=_DIM))
    y += 14
    for gpu in gpus:
        y += _HEAD
        title = "  ".join(each for each in (str(gpu.pf), _short(gpu.model)) if each)
        parts.append(_text(_MARGIN, y - 8, title, size=14, bold=True))
        if gpu.profile is not None:
            x = _MARGIN + _PANEL + _GAP
            parts.append(_text(x, y - 8, gpu.profile, size=14, bold=True))
        heights = [0]
        if gpu.now is not None:
            drawn, height = _panel(gpu.now, _MARGIN, y, colours)
            parts += drawn
            heights.append(height)
        x = _MARGIN + _PANEL + _GAP
        if gpu.then is not None:
            drawn, height = _panel(gpu.then, x, y, colours)
            parts += drawn
            heights.append(height)
        else:
            words = gpu.note or "the same"
            lines = _wrapped(words, 66)
            parts += [_text(x, y + 14 + 16 * n, line, colour=_DIM) for n, line in enumerate(lines)]
            heights.append(16 * len(lines) + 4)
        y += max(heights) + 12
        parts.append(
            f"<line x1='{_MARGIN}' x2='{width - _MARGIN}' y1='{y}' y2='{y}' stroke='{_LINE}'/>"
        )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{y + _MARGIN}' {_FONT}>"
        f"<rect width='100%' height='100%' fill='white'/>{''.join(parts)}</svg>\n"
    )


def _assigned(gpus: Sequence[GpuPicture]) -> dict[str, str]:
    names: dict[str, None] = {}
    for gpu in gpus:
        for state in (gpu.now, gpu.then):
            if state is not None:
                names |= dict.fromkeys(name for _, name in state.types)
                names |= dict.fromkeys(each.profile for each in state.instances)
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}


def _panel(state: State, x: int, y: int, colours: Mapping[str, str]) -> tuple[list[str], int]:
    """The shapes, and how high they are."""
    parts: list[str] = []
    top = y
    if state.mig:
        slot = _PANEL / max(state.slices, 1)
        for number in range(state.slices):
            parts.append(_rect(x + number * slot, y, slot, _BAR, _EMPTY))
        for each in state.instances:
            left, wide = x + each.placement.start * slot, each.placement.size * slot
            parts.append(_rect(left, y, wide, _BAR, colours[each.profile]))
            middle = left + wide / 2
            parts.append(_text(middle, y + 21, each.profile, size=10, middle=True))
        y += _BAR + 8
    if not state.vf_count:
        parts.append(_text(x, y + 12, "no VFs", colour=_DIM))
        return parts, y + 16 - top
    types = dict(state.types)
    step = _PANEL / _PER_ROW
    for number in range(state.vf_count):
        row, column = divmod(number, _PER_ROW)
        fill = colours[types[number]] if number in types else _EMPTY
        parts.append(_rect(x + column * step + 1, y + row * (_VF + 3), step - 2, _VF, fill))
    y += ((state.vf_count - 1) // _PER_ROW + 1) * (_VF + 3)
    legend = [f"{count} x {name}" for name, count in _counted(state).items()]
    words = ", ".join(legend) or "no vGPUs"
    for line in _wrapped(f"{words}; {_vfs(state)}", 66):
        y += _LEGEND - 2
        parts.append(_text(x, y - 2, line, size=12))
    return parts, y - top


def _vfs(state: State) -> str:
    return f"{state.vf_count} VFs"


def _wrapped(words: str, columns: int) -> list[str]:
    from textwrap import wrap

    return wrap(words, columns) or [""]


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height}' rx='2' "
        f"fill='{fill}' stroke='{_DIM}' stroke-width='0.7'/>"
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    colour: str = _INK,
    bold: bool = False,
    middle: bool = False,
) -> str:
    anchor = " text-anchor='middle'" if middle else ""
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}'{anchor}{weight}>"
        f"{escape(words)}</text>"
    )
