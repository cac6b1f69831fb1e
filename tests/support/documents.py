"""Configuration documents for the schema and the parser: right ones, and near misses.

`python -m tests.support.documents 10000` prints how often the two agree.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import jsonschema
import yaml

from gpu_bootstate.config import parse
from gpu_bootstate.problems import ConfigInvalid, Problem

Document: TypeAlias = "dict[str, Any]"
Dice: TypeAlias = random.Random

SCHEMA = Path(__file__).parents[2] / "config" / "gpu-bootstate.schema.json"

# Rules between values, which no schema of this draft can express; by a part of their sentence.
BEYOND_A_SCHEMA = {
    "a profile that is not there": "there is no profile ",
    "a GPU in two entries": " is matched by ",
    "a GPU named twice": " is named twice",
    "one placement or VF for two": " is taken already",
    "backoff above backoff-max": " is above backoff-max",
    "one gate file twice": " is listed twice, first at ",
    "a gate file of the preset": " is written by the preset ",
}
# Here a schema is the wider one: YAML has made a number of the first before it sees it, and it does
# not add up.
_WIDER = {
    "a device id of five digits without quotes": re.compile(r"'[0-9]{5}' is not valid"),
    "a time that adds up to nothing": re.compile(r"'0' is not valid"),
}


@dataclass
class Tally:
    accepted: int = 0
    refused: int = 0
    beyond: Counter[str] = field(default_factory=Counter)
    apart: list[str] = field(default_factory=list)


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))


def compare(count: int, seed: int = 0, *, to_the_first: bool = False) -> Tally:
    tally = Tally()
    for number in range(count):
        if to_the_first and tally.apart:
            break
        dice = random.Random(f"{seed}/{number}")  # noqa: S311
        judge(document(dice), tally)
    return tally


def judge(made: Document, tally: Tally) -> None:
    text = yaml.safe_dump(made, sort_keys=False)
    error = next(iter(validator().iter_errors(yaml.safe_load(text))), None)
    try:
        parse(text, "made.yaml")
    except ConfigInvalid as invalid:
        rules = {_rule(problem): problem for problem in invalid.problems}
        if error is not None:
            tally.refused += 1
        elif None in rules:
            tally.apart.append(f"the parser alone refuses: {rules[None]}\n{text}")
        else:
            tally.beyond.update(str(rule) for rule in rules)
    else:
        if error is not None:
            where = "/".join(map(str, error.absolute_path))
            tally.apart.append(f"the schema alone refuses: {where}: {error.message}\n{text}")
        else:
            tally.accepted += 1


def _rule(problem: Problem) -> str | None:
    for name, words in BEYOND_A_SCHEMA.items():
        if words in problem.message:
            return name
    return next((name for name, words in _WIDER.items() if words.match(problem.message)), None)


# --------------------------------------------------------------------------- documents


def document(dice: Dice) -> Document:
    """Half of them right, the others with one to three mistakes."""
    made = _right(dice)
    if dice.random() < 0.5:
        for _ in range(dice.choice([1, 1, 1, 2, 3])):
            _spoil(made, dice)
    return made


def _right(dice: Dice) -> Document:
    made: Document = {"version": "v1"}
    names = dice.sample(
        ["seven", "whole-card", "a", "7", "x.y+z", "A_1", "mig-all"], dice.randint(0, 4)
    )
    if names or dice.random() < 0.5:
        made["profiles"] = {name: _profile(dice) for name in names}
    if dice.random() < 0.9:
        addresses = [f"0000:{bus:02x}:{dice.choice(['00', '1f', '0a'])}.0" for bus in range(1, 40)]
        dice.shuffle(addresses)
        made["gpus"] = [_entry(dice, names, addresses) for _ in range(dice.randint(0, 3))]
    if dice.random() < 0.5:
        made["policy"] = _some(dice, _POLICY)
    if dice.random() < 0.4:
        made["gate"] = _some(dice, _GATE)
    if dice.random() < 0.4:
        made["kubernetes"] = _some(dice, _KUBERNETES)
    return made


def _some(dice: Dice, choices: dict[str, Callable[[Dice], Any]]) -> Document:
    keys = dice.sample(list(choices), dice.randint(0, min(len(choices), 5)))
    return {key: choices[key](dice) for key in keys}


def _profile(dice: Dice) -> Document:
    kind = dice.random()
    if kind < 0.15:
        return {"mode": dice.choice(["none", "passthrough"])}
    made: Document = {"mode": "vgpu"} if dice.random() < 0.3 else {}
    migs = [
        "1g.18gb",
        "1g.18gb+me",
        "3g.71gb",
        "2g.35gb",
        "7g.141gb",
        "1g.10gb-me",
        "1g.24gb+me,gfx",
    ]
    types = ["H200X-141C", "H200X-1-18C", "GRID A100-3-20C", "NVIDIA L40S-48Q", "RTX6000P-8A"]
    if dice.random() < 0.5 or not made:
        made["mig"] = _requests(dice, migs)
    if dice.random() < 0.6:
        made["vgpus"] = _requests(dice, types)
        if dice.random() < 0.3:
            made["mixed-size"] = dice.random() < 0.5
    if dice.random() < 0.2:
        made["compute-instances"] = dice.random() < 0.5
    return made


def _requests(dice: Dice, names: list[str]) -> Document:
    free = list(range(64))
    dice.shuffle(free)
    made: Document = {}
    for name in dice.sample(names, dice.randint(1, 3)):
        if dice.random() < 0.6:
            made[name] = dice.choice([1, 2, 7, 64])
        else:
            made[name] = [free.pop() for _ in range(dice.randint(1, 4))]
    return made


def _entry(dice: Dice, names: list[str], addresses: list[str]) -> Document:
    kind = dice.choice(["pci", "pci", "uuid", "serial", "device", "index"])
    number = dice.randint(0, 0xFFFF)
    match: Document
    if kind == "pci":
        few = [addresses.pop() for _ in range(dice.randint(1, 3))]
        match = {"pci": few[0] if len(few) == 1 else few}
    elif kind == "uuid":
        match = {"uuid": f"GPU-{number:08x}-1234-ABCD-ef01-{number:012x}"}
    elif kind == "serial":
        match = {"serial": dice.choice([f"165{number:010d}", 1650000000000 + number, "0abc123"])}
    elif kind == "index":
        match = {"index": dice.choice([0, 63, [1, 2, number % 60 + 3]])}
    else:
        match = {"device": dice.choice([f"0x{number:04x}", f"10de:{number:04X}", 2335])}
        if dice.random() < 0.5:
            match["count"] = dice.randint(1, 64)
        if dice.random() < 0.3:
            match["subsystem"] = f"0x{number ^ 0x1234:04x}"
    profile = dice.choice(names) if names and dice.random() < 0.7 else _profile(dice)
    made: Document = {"match": match, "profile": profile}
    if dice.random() < 0.3:
        made["on-missing"] = dice.choice(["fail", "degrade"])
    return made


def _time(dice: Dice) -> Any:
    return dice.choice([90, 0.5, "90s", "8min", "1min 30s", "500ms", "2 h", "90", 86400, " 5s "])


_UNITS = ["nvidia-dcgm.service", "nvidia-persistenced.service", "a@b.service", "x.timer"]
_POLICY: dict[str, Callable[[Dice], Any]] = {
    **dict.fromkeys(
        (
            *("deadline", "manager-wait", "vf-wait", "tool-timeout", "reset-timeout"),
            *("call-timeout", "read-timeout", "backoff", "backoff-max"),
        ),
        _time,
    ),
    "attempts": lambda dice: dice.choice([1, 4, 100]),
    "parallel": lambda dice: dice.choice([1, 8, 64]),
    "holders": lambda dice: dice.choice(
        ["refuse", {"stop": _UNITS[0]}, {"stop": _UNITS[: dice.randint(1, 4)]}]
    ),
    "on-conflict": lambda dice: dice.choice(["warn", "refuse"]),
    "gate": lambda dice: dice.choice(["all", "any"]),
    "allow-fewer-vfs": lambda dice: dice.random() < 0.5,
    "reboot": lambda dice: dice.choice(["never", "once"]),
    "sriov-manage": lambda dice: dice.choice(["/usr/lib/nvidia/sriov-manage", "/opt/x y/ä"]),
}
_GATE: dict[str, Callable[[Dice], Any]] = {
    "preset": lambda dice: dice.choice(["gpu-operator", "none"]),
    "files": lambda dice: dice.sample(
        [
            *("/run/x/ready", "/srv/.hidden", "/a"),
            {"path": "/run/y"},
            {"path": "/run/z", "content": dice.choice(["text", "two\nlines\n", 5, True, 1.5])},
        ],
        dice.randint(0, 4),
    ),
}
_KUBERNETES: dict[str, Callable[[Dice], Any]] = {
    "publish": lambda dice: dice.random() < 0.5,
    "features": lambda dice: dice.random() < 0.5,
    "kubeconfig": lambda _: "/etc/kubernetes/kubelet.conf",
    "node-name": lambda dice: dice.choice(["node-17", "n.example.org", "17", 17]),
    "state-label": lambda dice: dice.choice(
        ["nvidia.com/vgpu.config.state", "nvidia.com/mig.config.state"]
    ),
    "operands": lambda dice: dice.sample(["sandbox-device-plugin", "vgpu-manager"], 1),
    "restart": lambda dice: dice.sample(["app=plugin", "example.org/a.b=C_d"], 1),
}

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 65, 101, 70000, 1.5, "", "x", "v1", "refuse", "yes", " "),
    *("0000:17:00.0", "0000:17:2f.0", "17:00", "GPU-1", "0x2335", "0x23g5", "12", "0", "90 days"),
    *("1g.18gb", "H200X-141C", "nvidia-vgpud.service", "dcgm", "/run/../x", "/run//x", "run/x"),
    *("/proc/x", "/run/gpu-bootstate/x", "/sys", "/system/x", "a/b=c", "a=b=c", "-x", "N1"),
    *([], [[]], [0], [0, 0], ["x"], {}, {"path": 1}, {"stop": []}, {"a": 1}, {"mode": "none"}),
]


def _spoil(made: Document, dice: Dice) -> None:
    """One mistake somewhere, which may turn out to be none."""
    places = list(_places(made))
    if not places:
        return
    container, key = dice.choice(places)
    how = dice.random()
    if how < 0.2:
        del container[key]
    elif how < 0.4 and type(container[key]) is int:
        container[key] += dice.choice([-1, 1, 1, 57])
    elif how < 0.75 or isinstance(container, list):
        container[key] = deepcopy(dice.choice(_ODD))
    elif how < 0.9:
        value = container.pop(key)
        container[dice.choice([f"{key}s", key[:-1] or "x", key.upper(), key.replace("-", "_")])] = (
            value
        )
    else:
        name, value = dice.choice(list(_ADDED.items()))
        container[name] = deepcopy(value if dice.random() < 0.7 else dice.choice(_ODD))


# Right somewhere, and seldom where they end up.
_ADDED: Document = {
    "version": "v1",
    "mode": "none",
    "mig": {"1g.18gb": 1},
    "vgpus": {"H200X-141C": 1},
    "mixed-size": True,
    "count": 3,
    "subsystem": "0x1234",
    "pci": "0000:99:00.0",
    "index": 5,
    "content": "x",
    "x": 1,
}


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


if __name__ == "__main__":
    found = compare(int(sys.argv[1]))
    print(f"both accept: {found.accepted}")  # noqa: T201
    print(f"both refuse: {found.refused}")  # noqa: T201
    print(f"refused for a rule that no schema can say: {found.beyond.total()}")  # noqa: T201
    for name, times in found.beyond.most_common():
        print(f"    {name}: {times}")  # noqa: T201
    print(f"not the same: {len(found.apart)}")  # noqa: T201
    for text in found.apart[:5]:
        print(text)  # noqa: T201
    sys.exit(bool(found.apart))
