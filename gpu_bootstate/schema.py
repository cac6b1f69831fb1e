"""The configuration's JSON Schema, made from the parser's own keys, patterns, enums and limits.

Draft 7, which the YAML language servers of editors read best. What a schema cannot say (a GPU named
twice, a profile that no file has, whether a layout fits) only `check` can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from gpu_bootstate import config_sections as sections
from gpu_bootstate import config_values as values
from gpu_bootstate.config import TOP_KEYS, VERSION
from gpu_bootstate.model import (
    BDF,
    STATE_LABELS,
    GatePolicy,
    Kubernetes,
    Mode,
    OnConflict,
    OnMissing,
    Policy,
    RebootPolicy,
)

Schema: TypeAlias = "dict[str, Any]"

_NAME = "gpu-bootstate.yaml"


def schema() -> Schema:
    described: dict[str, Schema] = {
        "version": _fixed(VERSION, "Of the format of this file."),
        "profiles": {
            "description": "Named geometries: what a GPU can be.",
            "type": "object",
            "propertyNames": {"pattern": _whole(sections.PROFILE_NAME)},
            "additionalProperties": {"$ref": "#/definitions/profile"},
        },
        "gpus": {
            "description": "Which GPU is to be what. A GPU that no entry names is never touched.",
            "type": "array",
            "items": {"$ref": "#/definitions/entry"},
        },
        "policy": {"$ref": "#/definitions/policy"},
        "gate": {"$ref": "#/definitions/gate"},
        "kubernetes": {"$ref": "#/definitions/kubernetes"},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gpu-bootstate configuration",
        "description": "What the GPUs of a vGPU host are to be after every boot.",
        **_table(TOP_KEYS, described, required=("version",)),
        "definitions": {
            "profile": _profile(),
            "entry": _entry(),
            "match": _match(),
            "policy": _policy(),
            "gate": _gate(),
            "kubernetes": _kubernetes(),
        },
    }


# --------------------------------------------------------------------------- sections


def _profile() -> Schema:
    described: dict[str, Schema] = {
        "mode": _enum(
            Mode,
            Mode.VGPU,
            "vgpu: VFs, with what mig and vgpus say; none: bare; passthrough: bare, for the whole "
            "card to go to one VM.",
        ),
        "mig": _requests(
            "GPU instances: profile to how many, or to a list of placement starts.",
            {"pattern": _whole(sections.MIG_PROFILE)},
            "How many of these, or where each of them starts.",
        ),
        "vgpus": _requests(
            "vGPU types: name to how many, or to a list of VF indexes.",
            {"pattern": _whole(sections.VGPU_TYPE)},
            "How many of these, or on which VFs.",
        ),
        "mixed-size": _boolean("vGPUs of different framebuffer sizes on one GPU.", default=False),
        "compute-instances": _boolean(
            "Make a compute instance in each GPU instance; guests make their own otherwise.",
            default=False,
        ),
    }
    bare = [mode.value for mode in Mode if mode is not Mode.VGPU]
    return {
        "description": "What a GPU is to be.",
        **_table(sections.PROFILE_KEYS, described),
        "if": {"required": ["mode"], "properties": {"mode": {"enum": bare}}},
        "then": {"maxProperties": 1},
        "else": {
            "anyOf": [{"required": [key]} for key in ("mode", "mig", "vgpus")],
            "if": {"required": ["mixed-size"], "properties": {"mixed-size": {"const": True}}},
            "then": {"required": ["vgpus"]},
        },
    }


def _requests(description: str, names: Schema, what: str) -> Schema:
    count = {"type": "integer", "minimum": 1, "maximum": sections.MAX_PER_GPU}
    position = {"type": "integer", "minimum": 0, "maximum": sections.MAX_PER_GPU - 1}
    positions = {"type": "array", "items": position, "minItems": 1, "uniqueItems": True}
    return {
        "description": description,
        "type": "object",
        "minProperties": 1,
        "propertyNames": names,
        "additionalProperties": {"description": what, "anyOf": [count, positions]},
    }


def _entry() -> Schema:
    described: dict[str, Schema] = {
        "match": {"$ref": "#/definitions/match"},
        "profile": {
            "description": "The name of a profile, or what would stand under that name.",
            "anyOf": [_text("(?s:.+)"), {"$ref": "#/definitions/profile"}],
        },
        "on-missing": _enum(
            OnMissing,
            OnMissing.FAIL,
            "Where one of these GPUs is away: fail, or degrade: bring the others up.",
        ),
    }
    return {
        "description": "Some GPUs, and what they are to be.",
        **_table(sections.ENTRY_KEYS, described, required=("match", "profile")),
    }


def _match() -> Schema:
    address = {
        **_text(f" *{_ignoring_case(BDF)} *"),
        "not": {"pattern": ":[^01:][0-9a-fA-F](?:[.][0-7])? *$"},  # PCI devices end at 1f
    }
    device_id = _text(_ignoring_case(values.HEX_ID), number={"minimum": 1000, "maximum": 0xFFFF})
    described: dict[str, Schema] = {
        "pci": _one_or_more(address, "PCI addresses such as 0000:17:00.0."),
        "uuid": _one_or_more(
            _text(_ignoring_case(values.UUID)), "UUIDs as `nvidia-smi -L` shows them."
        ),
        "serial": _one_or_more(
            _text(values.SERIAL.pattern, number={"minimum": 1000, "maximum": 10**32 - 1}),
            "Serial numbers as `nvidia-smi -q` shows them, in quotes.",
        ),
        "device": {
            "description": 'A PCI device id in quotes, such as "0x2335".',
            **device_id,
        },
        "index": _one_or_more(
            {"type": "integer", "minimum": 0, "maximum": 63},
            "NVML's index. It may be another one after each boot: prefer anything else.",
        ),
        "subsystem": {
            "description": "With device: the PCI subsystem's device id, in quotes.",
            **device_id,
        },
        "count": {
            "description": "With device: how many there have to be.",
            "type": "integer",
            "minimum": 1,
            "maximum": sections.MAX_PER_GPU,
        },
    }
    kinds = ("pci", "uuid", "serial", "device", "index")
    return {
        "description": "Which GPUs, by exactly one of pci, uuid, serial, device and index.",
        **_table(sections.MATCH_KEYS, described),
        "oneOf": [{"required": [kind]} for kind in kinds],
        "dependencies": {"subsystem": ["device"], "count": ["device"]},
    }


def _policy() -> Schema:
    base = Policy()
    units = _one_or_more(_unit(), "Units with their full names.", unique=True)
    described: dict[str, Schema] = {
        "deadline": _duration("The whole run.", base.deadline_s),
        "manager-wait": _duration(
            "For the driver, the vGPU manager and Fabric Manager.", base.manager_wait_s
        ),
        "vf-wait": _duration("For VFs to offer vGPU types once they are there.", base.vf_wait_s),
        "tool-timeout": _duration("One call of sriov-manage.", base.tool_s),
        "reset-timeout": _duration("One GPU reset.", base.reset_s),
        "call-timeout": _duration("One change through the driver.", base.call_s),
        "read-timeout": _duration("One read.", base.read_s),
        "attempts": _integer(
            "Tries of a step that fails for a transient reason.", 1, 100, base.attempts
        ),
        "backoff": _duration("Pause before the second try; doubles with each.", base.backoff_s),
        "backoff-max": _duration("The longest pause.", base.backoff_max_s),
        "parallel": _integer("GPUs at once within a phase.", 1, 64, base.parallel),
        "holders": {
            "description": "Services that hold a GPU which has to be free: refuse, or "
            "{stop: [...]}: they are stopped, and started again afterwards.",
            "default": "refuse",
            "anyOf": [
                {"const": "refuse"},
                _table(("stop",), {"stop": units}, required=("stop",)),
            ],
        },
        "on-conflict": _enum(
            OnConflict, base.on_conflict, "Where other software changes the same GPUs."
        ),
        "gate": _enum(GatePolicy, base.gate, "all: the node is ready when every GPU is; any: one."),
        "allow-fewer-vfs": _boolean(
            "Go on with fewer VFs than the card can have.", default=base.allow_fewer_vfs
        ),
        "reboot": _enum(
            RebootPolicy, base.reboot, "once: per configuration, where only a reboot can help."
        ),
        "sriov-manage": {**_path("Where NVIDIA's tool is."), "default": base.sriov_manage},
    }
    return {
        "description": "How to act. Times are seconds, or like 90s, 8min, 1min 30s.",
        **_table(sections.POLICY_KEYS, described),
    }


def _gate() -> Schema:
    forbidden = "|".join(re.escape(each).replace(r"\-", "-") for each in sections.FORBIDDEN_DIRS)
    path = {**_path("An absolute path."), "not": {"pattern": f"^(?:{forbidden})(?:/|$)"}}
    content: Schema = {
        "description": "What it holds; nothing otherwise.",
        "type": ["string", "number", "boolean"],
    }
    file = _table(("path", "content"), {"path": path, "content": content}, required=("path",))
    described: dict[str, Schema] = {
        "preset": {
            "description": "gpu-operator: its sandbox path's files in /run/nvidia/validations.",
            "enum": list(sections.PRESETS),
        },
        "files": {
            "description": "Files to release beside /run/gpu-bootstate/ready.",
            "type": "array",
            "items": {"anyOf": [path, file]},
        },
    }
    when = "once all is verified, and removed before the first change"
    return {
        "description": f"What is released {when}.",
        **_table(("preset", "files"), described),
    }


def _kubernetes() -> Schema:
    base = Kubernetes()
    described: dict[str, Schema] = {
        "publish": _boolean(
            "Labels, annotation, Condition and Events of this Node.", default=base.publish
        ),
        "features": _boolean("A feature file for node-feature-discovery.", default=base.features),
        "kubeconfig": _path("Where it is not found from the running kubelet."),
        "node-name": {
            "description": "Where the credentials do not say it.",
            **_text(sections.NODE_NAME.pattern, number={"type": "number", "minimum": 0}),
        },
        "state-label": {
            "description": "Another tool's label, mirrored as pending, success or failed while "
            "that tool is off on the node.",
            "enum": list(STATE_LABELS),
        },
        "operands": {
            "description": "Of the GPU Operator: held back while the gate is closed.",
            "type": "array",
            "items": {"enum": list(sections.OPERANDS)},
        },
        "restart": {
            "description": "Labels of pods that read the vGPUs once, at their start.",
            "type": "array",
            "items": _text(sections.SELECTOR.pattern),
        },
    }
    return {
        "description": "What the cluster is told. None of it decides anything on the node.",
        **_table(sections.KUBERNETES_KEYS, described),
    }


# --------------------------------------------------------------------------- single values


def _table(
    keys: Iterable[str], described: Mapping[str, Schema], required: Iterable[str] = ()
) -> Schema:
    """Exactly the parser's keys: one that is not described here is a KeyError."""
    table: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: described[key] for key in keys},
    }
    if required := list(required):
        table["required"] = required
    return table


def _fixed(value: str, description: str) -> Schema:
    return {"description": description, "const": value}


def _enum(kind: type[Enum], default: Enum, description: str) -> Schema:
    return {
        "description": description,
        "enum": [member.value for member in kind],
        "default": default.value,
    }


def _boolean(description: str, *, default: bool) -> Schema:
    return {"description": description, "type": "boolean", "default": default}


def _integer(description: str, lowest: int, highest: int, default: int) -> Schema:
    limits = {"minimum": lowest, "maximum": highest}
    return {"description": description, "type": "integer", **limits, "default": default}


def _duration(description: str, default_s: float) -> Schema:
    part = values.DURATION_PART.pattern
    text = f" *(?:{values.NUMBER.pattern}|{part}(?: *{part})*) *"
    return {
        "description": description,
        "default": f"{default_s:g}s",
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": values.MAX_DURATION_S},
            _text(text),
        ],
    }


def _path(description: str) -> Schema:
    # Parts that are not empty, nor `.` nor `..`.
    part = r"/(?!\.{1,2}(?:/|$))[^/]{1,255}"
    return {"description": description, **_text(f"(?:{part})+"), "maxLength": 4095}


def _unit() -> Schema:
    needed = [*values.NEEDED_UNITS]
    return {**_text(values.UNIT.pattern), "maxLength": 255, "not": {"enum": needed}}


def _one_or_more(single: Schema, description: str, *, unique: bool = False) -> Schema:
    many: Schema = {"type": "array", "items": single, "minItems": 1}
    if unique:
        many["uniqueItems"] = True
    return {"description": description, "anyOf": [single, many]}


def _text(pattern: str, *, number: Mapping[str, object] | None = None) -> Schema:
    """``number``: which ones are meant where YAML takes it for one, for want of quotes."""
    text = {"type": "string", "pattern": _anchored(pattern)}
    return text if number is None else {"anyOf": [text, {"type": "integer", **number}]}


def _whole(pattern: re.Pattern[str]) -> str:
    return _anchored(pattern.pattern)


def _anchored(pattern: str) -> str:
    return f"^(?:{pattern.removeprefix('^').removesuffix('$')})$"


def _ignoring_case(pattern: re.Pattern[str]) -> str:
    """As JSON Schema has no flags: hexadecimal digits and fixed letters in both cases."""
    text = re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern)
    text = text.replace("a-f", "a-fA-F")
    return text.replace("GPU", "[Gg][Pp][Uu]").replace("0x", "0[xX]").replace("10de", "10[dD][eE]")
