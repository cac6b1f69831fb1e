# ruff: noqa: E501 -- messages are compared whole, each on one line
"""The configuration reader: what it understands, and that it finds every mistake at its place."""

from __future__ import annotations

import contextlib
import os
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_bootstate.config import load, parse
from gpu_bootstate.model import (
    Bdf,
    DesiredState,
    Entry,
    GateFile,
    GatePolicy,
    Kubernetes,
    Mark,
    MatchItem,
    MatchKind,
    MigRequest,
    Mode,
    OnConflict,
    OnMissing,
    Policy,
    Profile,
    VgpuRequest,
)
from gpu_bootstate.paths import Paths
from gpu_bootstate.problems import ConfigInvalid, Problem, ProblemList, nearest
from gpu_bootstate.reasons import Code

PROFILES = "version: v1\nprofiles:\n  whole: {vgpus: {H200X-141C: 1}}\n"
ONE_GPU = PROFILES + "gpus:\n  - match: {pci: 0000:17:00.0}\n    profile: whole\n"

DESIGN_EXAMPLE = """\
version: v1
profiles:                      # named geometries
  mig-seven:
    mig: {1g.18gb: 7}
    vgpus: {H200X-1-18C: 7}
  whole-card:
    vgpus: {H200X-141C: 1}
gpus:                          # what each GPU is to be; a GPU not named here is never touched
  - match: {pci: ["0000:17:00.0", "0000:3d:00.0"]}
    profile: mig-seven
  - match: {device: "0x2335", count: 6}   # device id with an expected count
    profile: whole-card
"""


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigInvalid) as caught:
        parse(text, "c.yaml")
    return caught.value.problems


def lines_of(text: str) -> list[str]:
    return [str(problem) for problem in problems_of(text)]


def the_line_of(text: str) -> str:
    (line,) = lines_of(text)
    return line


def profile_of(body: str) -> Profile:
    state = parse(f"version: v1\ngpus: [{{match: {{index: 0}}, profile: {body}}}]", "c.yaml")
    return state.entries[0].profile


def match_of(body: str) -> tuple[MatchItem, ...]:
    state = parse(PROFILES + f"gpus: [{{match: {body}, profile: whole}}]", "c.yaml")
    return state.entries[0].match


def policy_of(body: str) -> Policy:
    return parse(f"version: v1\npolicy: {body}", "c.yaml").policy


# --------------------------------------------------------------------------- what is understood


def test_the_example_of_the_design_gives_its_entries() -> None:
    def at(line: int, column: int) -> Mark:
        return Mark("c.yaml", line, column)

    seven = Profile(
        name="mig-seven",
        mode=Mode.VGPU,
        mig=(MigRequest("1g.18gb", 7, (), at(4, 11)),),
        vgpus=(VgpuRequest("H200X-1-18C", 7, (), at(5, 13)),),
        mixed_size=False,
        compute_instances=False,
        mark=at(3, 3),
    )
    whole = Profile(
        name="whole-card",
        mode=Mode.VGPU,
        mig=None,
        vgpus=(VgpuRequest("H200X-141C", 1, (), at(7, 13)),),
        mixed_size=False,
        compute_instances=False,
        mark=at(6, 3),
    )
    state = parse(DESIGN_EXAMPLE, "c.yaml")
    assert state == DesiredState(
        entries=(
            Entry(
                match=(
                    MatchItem(MatchKind.PCI, Bdf(0, 0x17, 0, 0), at(9, 19)),
                    MatchItem(MatchKind.PCI, Bdf(0, 0x3D, 0, 0), at(9, 35)),
                ),
                profile=seven,
                on_missing=OnMissing.FAIL,
                mark=at(9, 5),
                path="gpus[0]",
            ),
            Entry(
                match=(MatchItem(MatchKind.DEVICE, 0x2335, at(11, 21), count=6),),
                profile=whole,
                on_missing=OnMissing.FAIL,
                mark=at(11, 5),
                path="gpus[1]",
            ),
        ),
        policy=Policy(),
        gate_files=(),
        kubernetes=Kubernetes(),
        sources=("c.yaml",),
        digest=state.digest,
    )


def test_every_key_of_the_policy_reaches_its_field() -> None:
    text = """
      {deadline: 8min, manager-wait: 1min 30s, vf-wait: 500ms, tool-timeout: 61, reset-timeout: 62s,
       call-timeout: 0.5, read-timeout: 1h, attempts: 2, backoff: 3, backoff-max: 4, parallel: 5,
       holders: {stop: [nvidia-dcgm.service, "a@b.service"]}, on-conflict: refuse, gate: any,
       allow-fewer-vfs: true, sriov-manage: /opt/x y/sriov;manage}"""
    assert policy_of(text) == Policy(
        deadline_s=480.0,
        manager_wait_s=90.0,
        vf_wait_s=0.5,
        tool_s=61.0,
        reset_s=62.0,
        call_s=0.5,
        read_s=3600.0,
        attempts=2,
        backoff_s=3.0,
        backoff_max_s=4.0,
        parallel=5,
        stop_units=("nvidia-dcgm.service", "a@b.service"),
        on_conflict=OnConflict.REFUSE,
        gate=GatePolicy.ANY,
        allow_fewer_vfs=True,
        sriov_manage="/opt/x y/sriov;manage",
    )


@pytest.mark.parametrize(
    ("body", "kind", "values"),
    [
        ("{pci: 17:00.0}", MatchKind.PCI, [Bdf(0, 0x17, 0, 0)]),
        (
            "{pci: [00000001:04:00.0, 0001:05:00.0]}",
            MatchKind.PCI,
            [Bdf(1, 4, 0, 0), Bdf(1, 5, 0, 0)],
        ),
        (
            "{uuid: GPU-01234567-89AB-cdef-0123-456789abcdef}",
            MatchKind.UUID,
            ["GPU-01234567-89ab-cdef-0123-456789abcdef"],
        ),
        ("{serial: 0165000000001}", MatchKind.SERIAL, ["0165000000001"]),
        (
            "{serial: [1650000000001, '1650000000002']}",
            MatchKind.SERIAL,
            ["1650000000001", "1650000000002"],
        ),
        ("{index: [0, 7]}", MatchKind.INDEX, [0, 7]),
        ("{device: 0x2335}", MatchKind.DEVICE, [0x2335]),
        ("{device: '2335'}", MatchKind.DEVICE, [0x2335]),
        ("{device: 2335}", MatchKind.DEVICE, [0x2335]),
        ("{device: 10de:26b9}", MatchKind.DEVICE, [0x26B9]),
    ],
)
def test_each_way_of_naming_gpus(body: str, kind: MatchKind, values: list[object]) -> None:
    items = match_of(body)
    assert [item.value for item in items] == values
    assert {item.kind for item in items} == {kind}


def test_a_device_may_have_a_subsystem_and_a_count() -> None:
    (item,) = match_of("{device: 0x2335, subsystem: 0x18be, count: 8}")
    assert (item.value, item.subsystem, item.count) == (0x2335, 0x18BE, 8)


def test_counts_and_positions_of_instances_and_vgpus() -> None:
    profile = profile_of(
        "{mig: {4g.71gb: 1, 1g.18gb: [6, 4]}, vgpus: {NVIDIA H200X-1-18C: [3, 0]}}"
    )
    assert [(r.profile, r.count, r.starts) for r in profile.mig or ()] == [
        ("4g.71gb", 1, ()),
        ("1g.18gb", 2, (6, 4)),
    ]
    assert [(r.type_name, r.count, r.vf_indexes) for r in profile.vgpus] == [
        ("NVIDIA H200X-1-18C", 2, (3, 0))
    ]


def test_an_inline_profile_is_called_by_its_place() -> None:
    assert profile_of("{mode: none}").name == "gpus[0].profile"


@pytest.mark.parametrize("mode", list(Mode))
def test_modes(mode: Mode) -> None:
    body = ", vgpus: {L40S-48Q: 1}" if mode is Mode.VGPU else ""
    assert profile_of(f"{{mode: {mode.value}{body}}}").mode is mode


@pytest.mark.parametrize(
    "name",
    [
        "1g.18gb",
        "1g.5gb+me",
        "1g.24gb+me.all",
        "1g.24gb+gfx",
        "2g.48gb-me",
        "7g.141gb",
        "1g.24gb+me,gfx",
    ],
)
def test_mig_profile_names(name: str) -> None:
    (request,) = profile_of(f"{{mig: {{'{name}': 1}}}}").mig or ()
    assert request.profile == name


@pytest.mark.parametrize(
    "name",
    [
        "H200X-1-18C",
        "H200X-1-18CME",
        "GRID A100D-1-10C",
        "A40-1Q",
        "RTX Pro 6000 Blackwell DC-1-2Q",
    ],
)
def test_vgpu_type_names(name: str) -> None:
    assert profile_of(f"{{vgpus: {{{name}: 1}}}}").vgpus[0].type_name == name


def test_gate_files_with_and_without_content() -> None:
    text = 'version: v1\ngate:\n  files: [/run/x/ready, {path: /run/y, content: "a\\nb\\n"}]\n'
    assert parse(text, "c.yaml").gate_files == (
        GateFile("/run/x/ready", "", Mark("c.yaml", 3, 11)),
        GateFile("/run/y", "a\nb\n", Mark("c.yaml", 3, 32)),
    )


# --------------------------------------------------------------------------- mistakes, whole lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            "version: v1\nprofiles:\n  seven:\n    mig:\n      1g.18gb: 6\n      1g.18gb: 7\n",
            "c.yaml:6:7: profiles.seven.mig: the key '1g.18gb' is given twice, on line 5 and on "
            "line 6; expected each key once",
            id="S8",
        ),
        pytest.param(
            "version: v1\nprofiles: {seven: {mig: {1g.18gb: 6, 1g.18gb: 7}}}\n",
            "c.yaml:2:38: profiles.seven.mig: the key '1g.18gb' is given twice, on line 2 in "
            "columns 26 and 38; expected each key once",
            id="S8-one-line",
        ),
        pytest.param(
            ONE_GPU + "  - match: {pci: '17:00.0'}\n    profile: {mode: none}\n",
            "c.yaml:7:18: gpus[1].match.pci: 0000:17:00.0 is matched by gpus[1] and by gpus[0] "
            "(c.yaml:5:18); expected each GPU in one entry",
            id="S9",
        ),
        pytest.param(
            PROFILES + "gpus: [{match: {pci: [17:00.0, 3d:00.0, 0000:17:00.0]}, profile: whole}]\n",
            "c.yaml:4:41: gpus[0].match.pci: 0000:17:00.0 is named twice, first at c.yaml:4:23; "
            "expected each GPU once",
            id="one GPU twice in an entry",
        ),
        pytest.param(
            "version: v1\npolcy: {}\n",
            "c.yaml:2:1: unknown key 'polcy'; expected version, profiles, gpus, policy, gate or kubernetes; "
            "did you mean policy?",
            id="unknown key",
        ),
        pytest.param(
            ONE_GPU.replace("profile: whole", "profile: hole"),
            "c.yaml:6:14: gpus[0].profile: there is no profile 'hole'; expected the name of a "
            "profile; did you mean whole?",
            id="unknown profile",
        ),
        pytest.param(
            "version: v1\ngpus: [{match: {index: 0}, profile: x}]\n",
            "c.yaml:2:37: gpus[0].profile: there is no profile 'x'; expected an entry of that "
            "name in profiles",
            id="no profiles at all",
        ),
        pytest.param(
            "version: v1\nprofiles:\n  a: &a {mode: none}\n  b: *a\n",
            "c.yaml:4:6: profiles.b: the alias *a is not read; expected the value written out, or "
            "a named profile",
            id="alias",
        ),
        pytest.param(
            "version: v1\nprofiles:\n  b: {<<: {mig: {1g.18gb: 1}}, mode: none}\n",
            "c.yaml:3:7: profiles.b: the merge key << is not read; expected the keys written out, "
            "or a named profile",
            id="merge key",
        ),
        pytest.param(
            "version: v1\npolicy: {attempts: !!python/object/apply:os.system [id]}\n",
            "c.yaml:2:20: policy.attempts: the tag 'tag:yaml.org,2002:python/object/apply:os.system'"
            " is not read; expected no tag",
            id="tag",
        ),
        pytest.param(
            "version: v1\n---\nversion: v1\n",
            "c.yaml:2:1: a second document begins here; one is read",
            id="two documents",
        ),
        pytest.param(
            "version: v1\n? [a, b]\n: 1\n",
            "c.yaml:2:3: a key is a list or a mapping; expected a word",
            id="a list as key",
        ),
        pytest.param(
            "version: v1\npolicy: {holders: \x1b}\n",
            "c.yaml:2:19: the character U+001B is not allowed",
            id="control character",
        ),
        pytest.param(
            'version: v1\ngate: {files: ["/run/a\\0b"]}\n',
            "c.yaml:2:16: gate.files[0]: the character U+0000 is not allowed; expected an absolute "
            "path without //, . and ..",
            id="escaped NUL",
        ),
        pytest.param("", "c.yaml:1:1: the file is empty; expected version: v1", id="empty"),
        pytest.param("#\n", "c.yaml:1:1: the file is empty; expected version: v1", id="comment"),
        pytest.param(
            "gpus: []\n",
            "c.yaml:1:1: the key version is missing; expected version: v1",
            id="no version",
        ),
        pytest.param(
            "version: v2\ngpus: {what: is this}\n",
            "c.yaml:1:10: version: 'v2' is not valid; expected v1",
            id="unknown version, rest not judged",
        ),
        pytest.param(
            "- 1\n",
            "c.yaml:1:1: is a list; expected a mapping with version, profiles, gpus, policy, gate or "
            "kubernetes",
            id="a list as file",
        ),
        pytest.param(
            "version: v1\ngpus:\n",
            "c.yaml:2:6: gpus: is empty; expected a list of entries",
            id="nothing after the colon",
        ),
        pytest.param(
            "[" * 500,
            "c.yaml:1:22: nested more than 20 levels deep",
            id="nested deep",
        ),
        pytest.param(
            "version: v1\ngpus: [" + "0," * 20_000 + "]\n",
            "c.yaml:2:19998: the file has more than 10000 keys and values",
            id="many values",
        ),
        pytest.param("#" * 1_048_577, "c.yaml:1:1: the file is larger than 1 MiB", id="large"),
        pytest.param(
            "version: v1\npolicy: {backoff: 30}\n",
            "c.yaml:2:10: policy: backoff (30 s) is above backoff-max (8 s)",
            id="backoff above its limit",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_was_meant(text: str, line: str) -> None:
    assert the_line_of(text) == line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "{}",
            "c.yaml:4:16: gpus[0].match: names no GPU; expected exactly one of pci, uuid, serial, device and index",
        ),
        (
            "{pci: []}",
            "c.yaml:4:22: gpus[0].match.pci: the list is empty; expected one value or a list of them",
        ),
        (
            "{pci: 17:00.0, index: 0}",
            "c.yaml:4:16: gpus[0].match: names pci and index at once; expected exactly one of pci, uuid, serial, device and index",
        ),
        ("{index: 1, count: 3}", "c.yaml:4:27: gpus[0].match: count goes with device only"),
        (
            "{index: 1, subsystem: 0x18be}",
            "c.yaml:4:27: gpus[0].match: subsystem goes with device only",
        ),
        (
            "{index: -1}",
            "c.yaml:4:24: gpus[0].match.index: '-1' is not valid; expected a whole number from 0 to 63",
        ),
        (
            "{pci: 0000:17:0.0}",
            "c.yaml:4:22: gpus[0].match.pci: '0000:17:0.0' is not valid; expected a PCI address such as 0000:17:00.0; did you mean 0000:17:00.0?",
        ),
        (
            "{pci: 00:41:0000.0}",
            "c.yaml:4:22: gpus[0].match.pci: '00:41:0000.0' is not valid; expected a PCI address such as 0000:17:00.0; did you mean 0000:41:00.0?",
        ),
        (
            "{pci: GPU-1}",
            "c.yaml:4:22: gpus[0].match.pci: 'GPU-1' is not valid; expected a PCI address such as 0000:17:00.0",
        ),
        (
            "{uuid: MIG-1}",
            "c.yaml:4:23: gpus[0].match.uuid: 'MIG-1' names a MIG instance, not a GPU; expected a GPU's UUID as `nvidia-smi -L` shows it (GPU- and 32 hexadecimal digits)",
        ),
        (
            "{uuid: GPU-1}",
            "c.yaml:4:23: gpus[0].match.uuid: 'GPU-1' is not valid; expected a GPU's UUID as `nvidia-smi -L` shows it (GPU- and 32 hexadecimal digits)",
        ),
        (
            "{serial: S/N 1}",
            "c.yaml:4:25: gpus[0].match.serial: 'S/N 1' is not valid; expected a board's serial number as `nvidia-smi -q` shows it (4 to 32 digits)",
        ),
        (
            "{device: H200}",
            "c.yaml:4:25: gpus[0].match.device: 'H200' is not valid; expected four hexadecimal digits such as 0x2335 or 10de:2335",
        ),
        (
            "{device: 0x2335, count: 0}",
            "c.yaml:4:40: gpus[0].match.count: '0' is not valid; expected a whole number from 1 to 64",
        ),
        (
            "{pic: 17:00.0, index: 0}",
            "c.yaml:4:17: gpus[0].match: unknown key 'pic'; expected pci, uuid, serial, device, index, subsystem or count; did you mean pci?",
        ),
    ],
)
def test_mistakes_in_a_match(body: str, message: str) -> None:
    assert the_line_of(PROFILES + f"gpus: [{{match: {body}, profile: whole}}]") == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "{}",
            ": the profile does not say what the GPU is to be; expected mig, vgpus or mode",
        ),
        ("{mode: off}", ".mode: 'off' is not valid; expected vgpu, passthrough or none"),
        ("{mode: none, mig: {1g.18gb: 1}}", ": mode none leaves the GPU bare; it cannot have mig"),
        (
            "{mode: passthrough, vgpus: {A40-1Q: 1}}",
            ": mode passthrough leaves the GPU bare; it cannot have vgpus",
        ),
        ("{mig: {}}", ".mig: is empty; expected at least one, or no such key"),
        (
            "{mig: {1g.18gb: 0}}",
            ".mig[\"1g.18gb\"]: '0' is not valid; expected a whole number from 1 to 64, or no such line",
        ),
        (
            "{mig: {1g.18gb: 65}}",
            ".mig[\"1g.18gb\"]: '65' is not valid; expected a whole number from 1 to 64, or no such line",
        ),
        (
            "{mig: {1g.18gb: '7'}}",
            ".mig[\"1g.18gb\"]: '7' is not valid (in quotes it is text); expected a whole number from 1 to 64, or no such line",
        ),
        (
            "{mig: {1g.18gb: 010}}",
            ".mig[\"1g.18gb\"]: '010' is not valid; expected a whole number from 1 to 64, or no such line",
        ),
        ("{mig: {1g.18gb: []}}", '.mig["1g.18gb"]: the list is empty; expected placement starts'),
        (
            "{mig: {1g.18gb: [2, 2]}}",
            '.mig["1g.18gb"][1]: placement start 2 is taken already, at c.yaml:2:54; expected each placement start once',
        ),
        (
            "{mig: {1G.18gb: 1}}",
            ".mig: '1G.18gb' is no MIG profile; expected a GPU instance profile such as 1g.18gb or 1g.18gb+me; did you mean 1g.18gb?",
        ),
        (
            "{mig: {MIG 1g.18: 1}}",
            ".mig: 'MIG 1g.18' is no MIG profile; expected a GPU instance profile such as 1g.18gb or 1g.18gb+me; did you mean 1g.18gb?",
        ),
        (
            "{mig: {all-1g: 1}}",
            ".mig: 'all-1g' is no MIG profile; expected a GPU instance profile such as 1g.18gb or 1g.18gb+me",
        ),
        (
            "{mig: {1c.2g.35gb: 1}}",
            ".mig: '1c.2g.35gb' is a compute instance, which a guest makes for itself; expected a GPU instance profile such as 1g.18gb or 1g.18gb+me; did you mean 2g.35gb?",
        ),
        (
            "{vgpus: {A40-1Q: [0], A40-2Q: [1, 0]}}",
            ".vgpus.A40-2Q[1]: VF index 0 is taken already, at c.yaml:2:55; expected each VF index once",
        ),
        (
            "{vgpus: {A40-1Q: [64]}}",
            ".vgpus.A40-1Q[0]: '64' is not valid; expected a whole number from 0 to 63",
        ),
        (
            "{vgpus: {nvidia-1414: 1}}",
            ".vgpus: 'nvidia-1414' is a type's number, which changes with the driver; expected a vGPU type's name such as H200X-141C or H200X-1-18C",
        ),
        (
            "{vgpus: {H200X: 1}}",
            ".vgpus: 'H200X' is no vGPU type; expected a vGPU type's name such as H200X-141C or H200X-1-18C",
        ),
        ("{vgpus: [A40-1Q]}", ".vgpus: is a list; expected a mapping"),
        (
            "{vgpus: {A40-1Q: 1}, mixed-size: yes}",
            ".mixed-size: 'yes' is not valid; expected true or false; did you mean true?",
        ),
        (
            "{vgpus: {A40-1Q: 1}, mixed-size: 'true'}",
            ".mixed-size: 'true' is not valid (in quotes it is text); expected true or false; did you mean true?",
        ),
        (
            "{mig: {1g.18gb: 1}, mixed-size: true}",
            ": mixed-size concerns vGPUs, and there are none; expected vgpus, too",
        ),
        (
            "{vgpus: {A40-1Q: 1}, mixed_size: true}",
            ": unknown key 'mixed_size'; expected mode, mig, vgpus, mixed-size or compute-instances; did you mean mixed-size?",
        ),
    ],
)
def test_mistakes_in_a_profile(body: str, message: str) -> None:
    line = the_line_of(f"version: v1\ngpus: [{{match: {{index: 0}}, profile: {body}}}]")
    assert line.partition(" gpus[0].profile")[2] == message
    assert line.startswith("c.yaml:2:")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        *[
            (
                f"{{deadline: {text}}}",
                f".deadline: '{text}' is not valid; expected a time of more than 0 and at most 24 h, such as 90, 90s, 1min 30s or 500ms",
            )
            for text in ("0", "-1", ".inf", ".nan", "1e3", "25h", "2 weeks", "9" * 50, "1:30", "٣")
        ],
        (
            "{deadline: [1]}",
            ".deadline: is a list; expected a time of more than 0 and at most 24 h, such as 90, 90s, 1min 30s or 500ms",
        ),
        ("{attempts: 0}", ".attempts: '0' is not valid; expected a whole number from 1 to 100"),
        ("{attempts: 1.5}", ".attempts: '1.5' is not valid; expected a whole number from 1 to 100"),
        ("{attempts: 0x4}", ".attempts: '0x4' is not valid; expected a whole number from 1 to 100"),
        (
            "{attempts: " + "1" * 5000 + "}",
            ".attempts: '" + "1" * 57 + "...' is not valid; expected a whole number from 1 to 100",
        ),
        ("{parallel: 65}", ".parallel: '65' is not valid; expected a whole number from 1 to 64"),
        ("{gate: every}", ".gate: 'every' is not valid; expected all or any"),
        (
            "{on-conflict: refused}",
            ".on-conflict: 'refused' is not valid; expected warn or refuse; did you mean refuse?",
        ),
        (
            "{holders: stop}",
            ".holders: 'stop' is not valid; expected refuse or {stop: [a unit, ...]}",
        ),
        (
            "{holders: {}}",
            ".holders: the key stop is missing; expected refuse or {stop: [a unit, ...]}",
        ),
        ("{holders: {stop: []}}", ".holders.stop: the list is empty; expected a list of units"),
        (
            "{holders: {stop: [dcgm]}}",
            ".holders.stop[0]: 'dcgm' is not valid; expected a unit's full name such as nvidia-dcgm.service; did you mean dcgm.service?",
        ),
        (
            "{holders: {stop: ['a;b.service']}}",
            ".holders.stop[0]: 'a;b.service' is not valid; expected a unit's full name such as nvidia-dcgm.service",
        ),
        (
            "{holders: {stop: [--now.service, a.service, a.service]}}",
            ".holders.stop[2]: a.service is listed twice; expected each unit once",
        ),
        (
            "{holders: {stop: nvidia-vgpud.service}}",
            ".holders.stop: nvidia-vgpud.service is needed while the GPUs are set up and cannot be stopped",
        ),
        (
            "{sriov-manage: bin/sriov-manage}",
            ".sriov-manage: 'bin/sriov-manage' is not valid; expected an absolute path without //, . and ..",
        ),
        (
            "{sriov-manage: //usr/./x}",
            ".sriov-manage: '//usr/./x' is not valid; expected an absolute path without //, . and ..; did you mean /usr/x?",
        ),
    ],
)
def test_mistakes_in_the_policy(body: str, message: str) -> None:
    line = the_line_of(f"version: v1\npolicy: {body}")
    assert line.partition(" policy")[2] == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "[/run/a/../b]",
            "[0]: '/run/a/../b' is not valid; expected an absolute path without //, . and ..",
        ),
        (
            "[/run/a/]",
            "[0]: '/run/a/' is not valid; expected an absolute path without //, . and ..; did you mean /run/a?",
        ),
        ("[/]", "[0]: '/' is not valid; expected an absolute path without //, . and .."),
        (
            '["/run/a\\nb"]',
            "[0]: has a line break or a tab in it; expected an absolute path without //, . and ..",
        ),
        (
            "[/run/gpu-bootstate/ready]",
            "[0]: '/run/gpu-bootstate/ready' is inside /run/gpu-bootstate, where gate files cannot be",
        ),
        ("[/sys/x]", "[0]: '/sys/x' is inside /sys, where gate files cannot be"),
        (
            "[/run/a, {path: /run/a}]",
            "[1].path: '/run/a' is listed twice, first at c.yaml:2:16; expected each file once",
        ),
        ("[{content: x}]", "[0]: the key path is missing"),
        ("[{path: /run/a, content: [1]}]", "[0].content: is a list; expected text, in quotes"),
        (
            "/run/a",
            ": '/run/a' is a single value; expected a list of absolute paths, or of mappings with path and content",
        ),
    ],
)
def test_mistakes_in_the_gate_files(body: str, message: str) -> None:
    line = the_line_of(f"version: v1\ngate: {{files: {body}}}")
    assert line.partition(" gate.files")[2] == message


def test_a_syntax_error_is_told_where_the_parser_met_it() -> None:
    line = the_line_of("version: v1\ngpus:\n  - {match: [}\n")
    assert line.startswith("c.yaml:3:14: not valid YAML: while parsing a flow node: ")


def test_all_mistakes_of_a_file_are_found_at_once_in_order() -> None:
    text = "version: v1\ngpus:\n- match: {pci: 1}\n  profil: x\npolicy: {parallel: 0}\nx: 1\n"
    assert [(p.mark and p.mark.line, p.path) for p in problems_of(text)] == [
        (3, "gpus[0]"),
        (3, "gpus[0].match.pci"),
        (4, "gpus[0]"),
        (5, "policy.parallel"),
        (6, ""),
    ]


def test_a_wrong_profile_is_not_called_missing_as_well() -> None:
    text = "version: v1\nprofiles: {a: {mode: on}}\ngpus: [{match: {index: 0}, profile: a}]\n"
    assert [problem.path for problem in problems_of(text)] == ["profiles.a.mode"]


def test_two_entries_on_one_gpu_have_the_code_of_an_overlap() -> None:
    text = ONE_GPU + "  - match: {pci: 17:00.0}\n    profile: whole\n"
    assert [problem.code for problem in problems_of(text)] == [Code.GPU_OVERLAP]


def test_a_file_full_of_mistakes_lists_a_hundred_and_counts_the_rest() -> None:
    lines = lines_of("version: v1\ngpus: [" + "0," * 250 + "]\n")
    assert len(lines) == 101
    assert lines[-1] == "150 more problems are not listed"
    lines = lines_of("version: v1\ngpus: [" + "0," * 101 + "]\n")
    assert lines[-1] == "1 more problem is not listed"


# --------------------------------------------------------------------------- files and drop-ins


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def put(paths: Paths, name: str, text: str) -> Path:
    path = paths.at(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_at_all_is_no_entries(paths: Paths) -> None:
    state = load(paths)
    assert (state.entries, state.sources, state.policy) == ((), (), Policy())


def test_drop_ins_apply_by_name_whatever_their_directory(paths: Paths) -> None:
    main = put(paths, "/etc/gpu-bootstate/config.yaml", ONE_GPU)
    late = put(
        paths, "/usr/lib/gpu-bootstate/config.d/90.yaml", "version: v1\npolicy: {parallel: 9}"
    )
    early = put(
        paths,
        "/etc/gpu-bootstate/config.d/10.yaml",
        "version: v1\npolicy: {parallel: 1, attempts: 7}",
    )
    state = load(paths)
    assert state.sources == (str(main), str(early), str(late))
    assert (state.policy.parallel, state.policy.attempts) == (9, 7)


def test_a_drop_in_takes_the_place_of_one_of_the_same_name(paths: Paths) -> None:
    for top, number in (("/usr/lib", 1), ("/run", 2), ("/etc", 3)):
        text = f"version: v1\npolicy: {{parallel: {number}}}"
        put(paths, f"{top}/gpu-bootstate/config.d/a.yaml", text)
    assert load(paths).policy.parallel == 3
    assert len(load(paths).sources) == 1


@pytest.mark.parametrize("how", ["empty", "link"])
def test_an_empty_drop_in_or_a_link_to_dev_null_masks(paths: Paths, how: str) -> None:
    put(paths, "/usr/lib/gpu-bootstate/config.d/a.yaml", "version: v1\npolicy: {parallel: 1}")
    mask = put(paths, "/etc/gpu-bootstate/config.d/a.yaml", "")
    if how == "link":
        mask.unlink()
        mask.symlink_to("/dev/null")
    state = load(paths)
    assert (state.policy, state.sources) == (Policy(), ())


def test_a_profile_of_a_drop_in_replaces_the_earlier_one_whole(paths: Paths) -> None:
    put(paths, "/etc/gpu-bootstate/config.yaml", ONE_GPU)
    over = put(
        paths,
        "/etc/gpu-bootstate/config.d/a.yaml",
        "version: v1\nprofiles:\n  whole: {mig: {7g.141gb: 1}}\n",
    )
    (entry,) = load(paths).entries
    assert entry.profile.vgpus == ()
    assert entry.profile.mark == Mark(str(over), 3, 3)


def test_a_drop_in_entry_with_the_same_match_replaces_and_any_other_is_added(paths: Paths) -> None:
    first = PROFILES + "gpus: [{match: {pci: [17:00.0, 3d:00.0]}, profile: whole}]\n"
    put(paths, "/etc/gpu-bootstate/config.yaml", first)
    put(
        paths,
        "/etc/gpu-bootstate/config.d/a.yaml",
        "version: v1\ngpus:\n"
        "- {match: {pci: 60:00.0}, profile: whole}\n"
        "- {match: {pci: ['0000:3d:00.0', '0000:17:00.0']}, profile: {mode: none}}\n",
    )
    entries = load(paths).entries
    assert [(entry.profile.mode, len(entry.match), entry.path) for entry in entries] == [
        (Mode.NONE, 2, "gpus[1]"),
        (Mode.VGPU, 1, "gpus[0]"),
    ]


def test_a_drop_in_can_correct_the_expected_count(paths: Paths) -> None:
    text = PROFILES + "gpus: [{match: {device: 2335, count: 8}, profile: whole}]\n"
    put(paths, "/etc/gpu-bootstate/config.yaml", text)
    put(
        paths,
        "/run/gpu-bootstate/config.d/a.yaml",
        "version: v1\ngpus: [{match: {device: 2335, count: 7}, profile: whole}]\n",
    )
    (entry,) = load(paths).entries
    assert entry.match[0].count == 7


def test_a_drop_in_entry_that_shares_a_gpu_with_another_match_is_an_overlap(paths: Paths) -> None:
    main = put(paths, "/etc/gpu-bootstate/config.yaml", ONE_GPU)
    over = put(
        paths,
        "/etc/gpu-bootstate/config.d/a.yaml",
        "version: v1\ngpus: [{match: {pci: [17:00.0, 3d:00.0]}, profile: whole}]\n",
    )
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert str(caught.value) == (
        f"{over}:2:23: gpus[0].match.pci: 0000:17:00.0 is matched by gpus[0] and by gpus[0] "
        f"({main}:5:18); expected each GPU in one entry"
    )


def test_the_preset_of_the_gpu_operator_comes_last_and_its_key_file_at_the_end() -> None:
    text = "version: v1\ngate: {preset: gpu-operator, files: [/run/x]}\n"
    validations = "/run/nvidia/validations"
    assert [(file.path, file.content) for file in parse(text, "c.yaml").gate_files] == [
        ("/run/x", ""),
        (f"{validations}/workload-type", "vm-vgpu\n"),
        (f"{validations}/host-vgpu-manager-ready", ""),
        (f"{validations}/vgpu-devices-ready", ""),
    ]


def test_a_file_of_the_preset_is_not_to_be_listed_too() -> None:
    name = "/run/nvidia/validations/vgpu-devices-ready"
    line = the_line_of(f"version: v1\ngate: {{files: [{name}], preset: gpu-operator}}\n")
    assert f"'{name}' is written by the preset (c.yaml:2:69) already" in line


def test_a_drop_in_takes_the_preset_back_and_leaves_the_files(paths: Paths) -> None:
    main = "version: v1\ngate: {preset: gpu-operator, files: [/run/a]}"
    put(paths, "/etc/gpu-bootstate/config.yaml", main)
    put(paths, "/etc/gpu-bootstate/config.d/a.yaml", "version: v1\ngate: {preset: none}")
    assert [file.path for file in load(paths).gate_files] == ["/run/a"]


def test_what_the_cluster_is_told_is_merged_key_by_key_and_is_not_what_the_node_is(
    paths: Paths,
) -> None:
    main = """version: v1
kubernetes:
  publish: true
  kubeconfig: /etc/kubernetes/kubelet.conf
  node-name: n1.example
  state-label: nvidia.com/vgpu.config.state
  operands: [sandbox-device-plugin]
  restart: [app=nvidia-sandbox-device-plugin-daemonset]
"""
    put(paths, "/etc/gpu-bootstate/config.yaml", "version: v1\n")
    digest = load(paths).digest
    put(paths, "/etc/gpu-bootstate/config.yaml", main)
    put(paths, "/etc/gpu-bootstate/config.d/a.yaml", "version: v1\nkubernetes: {operands: []}")
    desired = load(paths)
    assert desired.kubernetes == Kubernetes(
        publish=True,
        kubeconfig="/etc/kubernetes/kubelet.conf",
        node_name="n1.example",
        state_label="nvidia.com/vgpu.config.state",
        restart=("app=nvidia-sandbox-device-plugin-daemonset",),
    )
    assert desired.digest == digest


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "publish: yes",
            ".publish: 'yes' is not valid; expected true or false; did you mean true?",
        ),
        ("node-name: N1", ".node-name: 'N1' is not valid; expected the name of the Node"),
        (
            "state-label: nvidia.com/vgpu.state",
            (
                ".state-label: 'nvidia.com/vgpu.state' is not valid; expected "
                "nvidia.com/vgpu.config.state or nvidia.com/mig.config.state; did you mean "
                "nvidia.com/vgpu.config.state?"
            ),
        ),
        (
            "operands: [sandbox-plugin]",
            (
                ".operands[0]: 'sandbox-plugin' is not valid; expected sandbox-device-plugin, "
                "sandbox-validator, vgpu-device-manager, vgpu-manager or cc-manager; did you mean "
                "sandbox-device-plugin?"
            ),
        ),
        (
            "restart: [nvidia]",
            ".restart[0]: 'nvidia' is not valid; expected a label of pods such as app=name",
        ),
        ("restart: app=x", ".restart: 'app=x' is a single value; expected a list"),
        (
            "kubeconfig: kubelet.conf",
            (
                ".kubeconfig: 'kubelet.conf' is not valid; expected an absolute "
                "path without //, . and .."
            ),
        ),
    ],
)
def test_mistakes_in_what_the_cluster_is_told(body: str, message: str) -> None:
    line = the_line_of(f"version: v1\nkubernetes: {{{body}}}")
    assert line.partition(" kubernetes")[2] == message


def test_gate_files_of_a_drop_in_replace_the_list(paths: Paths) -> None:
    put(paths, "/etc/gpu-bootstate/config.yaml", "version: v1\ngate: {files: [/run/a, /run/b]}")
    put(paths, "/etc/gpu-bootstate/config.d/a.yaml", "version: v1\ngate: {files: [/run/c]}")
    assert [file.path for file in load(paths).gate_files] == ["/run/c"]


def test_the_explicit_file_is_read_without_drop_ins(paths: Paths, tmp_path: Path) -> None:
    put(paths, "/etc/gpu-bootstate/config.d/a.yaml", "version: v1\npolicy: {parallel: 1}")
    other = put(paths, "/other.yaml", ONE_GPU)
    state = load(paths, other)
    assert (state.sources, state.policy) == ((str(other),), Policy())
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigInvalid) as caught:
        load(paths, missing)
    assert str(caught.value) == (
        f"{missing}:1:1: the file cannot be read: No such file or directory"
    )


def test_mistakes_of_all_files_come_in_the_order_of_reading(paths: Paths) -> None:
    main = put(paths, "/etc/gpu-bootstate/config.yaml", "version: v1\ngpus: [{}]\nx: 1\n")
    one = put(paths, "/run/gpu-bootstate/config.d/1.yaml", "version: v1\ny: 1\n")
    two = put(paths, "/etc/gpu-bootstate/config.d/2.yaml", "version: v1\nz: [\n")
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    marks = [problem.mark for problem in caught.value.problems]
    assert [(mark.file, mark.line) for mark in marks if mark] == [
        (str(main), 2),
        (str(main), 2),
        (str(main), 3),
        (str(one), 2),
        (str(two), 3),
    ]


def test_a_file_that_cannot_be_parsed_makes_no_profile_missing(paths: Paths) -> None:
    put(paths, "/etc/gpu-bootstate/config.yaml", ONE_GPU.replace("profiles:", "profiles: {"))
    put(
        paths,
        "/etc/gpu-bootstate/config.d/a.yaml",
        "version: v1\ngpus: [{match: {index: 0}, profile: whole}]\n",
    )
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert len(caught.value.problems) == 1


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def not_utf8(path: Path) -> None:
    path.write_bytes(b"version: v1\n# caf\xe9\n")


def ten_megabytes(path: Path) -> None:
    path.write_bytes(b"#" * 10_000_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (directory, "1:1: the file cannot be read: Is a directory"),
        (fifo, "1:1: is not a regular file"),
        (link_to_nothing, "1:1: the file cannot be read: No such file or directory"),
        (not_utf8, "2:6: the byte 0xe9 is not UTF-8"),
        (ten_megabytes, "1:1: the file is larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_text_is_a_problem(
    paths: Paths, make: Callable[[Path], None], message: str
) -> None:
    path = paths.config
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert str(caught.value) == f"{path}:{message}"


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root acts with his own rights only")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "who"),
    [
        (65534, 0, 0o644, "user 65534, whose it is, can write here"),
        (0, 0, 0o646, "everybody can write here"),
        (0, 65534, 0o664, "group 65534 can write here"),
        (0, 0, 0o664, None),
        (0, 65534, 0o644, None),
    ],
)
@pytest.mark.parametrize("what", ["file", "directory"])
def test_root_obeys_only_what_root_alone_can_write(
    paths: Paths, owner: int, group: int, mode: int, who: str | None, what: str
) -> None:
    path = put(paths, "etc/gpu-bootstate/config.d/a.yaml", "version: v1\n")
    target = path if what == "file" else path.parent
    os.chown(target, owner, group)
    target.chmod(mode if what == "file" else mode | 0o111)
    if who is None:
        load(paths)
    else:
        with pytest.raises(ConfigInvalid) as caught:
            load(paths)
        assert f"{target}:1:1: {who}" in str(caught.value)
        assert "chown root:root" in str(caught.value)
    load(paths, path)  # named on the command line


def test_a_byte_order_mark_means_nothing(paths: Paths) -> None:
    put(paths, "/etc/gpu-bootstate/config.yaml", "\ufeff" + ONE_GPU)
    assert load(paths).digest == parse(ONE_GPU, "c.yaml").digest


def test_other_names_in_a_drop_in_directory_are_left_alone_but_yml_is_told(paths: Paths) -> None:
    for name in (".a.yaml", "a.yaml.rpmsave", "a.yaml~", "README"):
        put(paths, f"/etc/gpu-bootstate/config.d/{name}", "not: [yaml")
    assert load(paths).sources == ()
    path = put(paths, "/etc/gpu-bootstate/config.d/a.yml", "version: v1")
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert str(caught.value) == (
        f"{path}:1:1: a file of this name is not read; expected a name that ends in .yaml"
    )


def test_a_file_name_that_is_no_utf8_can_still_be_printed(paths: Paths) -> None:
    directory = paths.at("/etc/gpu-bootstate/config.d")
    directory.mkdir(parents=True)
    (directory / os.fsdecode(b"caf\xe9.yaml")).write_text("x: 1")
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert [str(p).isprintable() for p in caught.value.problems] == [True, True]


def test_an_empty_main_file_makes_no_profile_missing(paths: Paths) -> None:
    put(paths, "/etc/gpu-bootstate/config.yaml", "")
    entry = "version: v1\ngpus: [{match: {index: 0}, profile: whole}]\n"
    put(paths, "/etc/gpu-bootstate/config.d/a.yaml", entry)
    with pytest.raises(ConfigInvalid) as caught:
        load(paths)
    assert [problem.message for problem in caught.value.problems] == ["the file is empty"]


# --------------------------------------------------------------------------- digest


SAME = [
    (
        "gpus: [{match: {pci: 17:00.0}, profile: a}]",
        "gpus: [{profile: b, match: {pci: ['0000:17:00.0']}}]",
    ),
    ("policy: {deadline: 8min}", "policy: {deadline: 480, attempts: 4} # the defaults"),
    ("policy: {}", "gate: {files: []}"),
    ("gate: {files: [/run/a, /run/b]}", "gate: {files: [/run/b, {path: /run/a}]}"),
    (
        "gpus: [{match: {index: 0}, profile: a}, {match: {index: 1}, profile: c}]",
        "gpus: [{match: {index: 1}, profile: c}, {match: {index: 0}, profile: b}]",
    ),
    (
        "gpus: [{match: {index: 0}, profile: {mig: {4g.71gb: 1, 1g.18gb: [4, 5]}}}]",
        "gpus: [{match: {index: 0}, profile: {mig: {1g.18gb: [5, 4], 4g.71gb: 1}}}]",
    ),
]

OTHER = [
    ("gpus: [{match: {index: 0}, profile: a}]", "gpus: [{match: {index: 1}, profile: a}]"),
    ("gpus: [{match: {index: 0}, profile: a}]", "gpus: [{match: {index: 0}, profile: c}]"),
    (
        "gpus: [{match: {device: 2335}, profile: a}]",
        "gpus: [{match: {device: 2335, count: 8}, profile: a}]",
    ),
    ("policy: {deadline: 8min}", "policy: {deadline: 9min}"),
    ("gate: {files: [/run/a]}", "gate: {files: [{path: /run/a, content: x}]}"),
    (
        "gpus: [{match: {index: 0}, profile: {vgpus: {A40-1Q: 1, A40-2Q: 1}}}]",
        "gpus: [{match: {index: 0}, profile: {vgpus: {A40-2Q: 1, A40-1Q: 1}}}]",
    ),
    (
        "gpus: [{match: {index: 0}, profile: {vgpus: {A40-1Q: 2}}}]",
        "gpus: [{match: {index: 0}, profile: {vgpus: {A40-1Q: [0, 1]}}}]",
    ),
]

THREE = "version: v1\nprofiles: {a: {mode: none}, b: {mode: none}, c: {mig: {1g.18gb: 1}}}\n"


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_digest_stays_when_the_meaning_stays(one: str, other: str) -> None:
    assert parse(THREE + one, "a").digest == parse(THREE + other, "b").digest


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_the_digest_changes_with_the_meaning(one: str, other: str) -> None:
    assert parse(THREE + one, "a").digest != parse(THREE + other, "a").digest


# --------------------------------------------------------------------------- anything at all


KEYS = [
    "version",
    "profiles",
    "gpus",
    "policy",
    "gate",
    "match",
    "profile",
    "pci",
    "uuid",
    "serial",
    "device",
    "index",
    "count",
    "subsystem",
    "mig",
    "vgpus",
    "mode",
    "mixed-size",
    "holders",
    "stop",
    "files",
    "path",
    "content",
    "deadline",
    "attempts",
    "1g.18gb",
    "H200X-1-18C",
    "<<",
]
SCALARS = st.one_of(
    st.sampled_from(["v1", "a", "*a", "&a", "!t", "~", "", "none", "on", "17:00.0", "0x2335", "7"]),
    st.integers(-2, 70).map(str),
    st.text(string.printable, max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + ", ".join(parts) + "]"),
        st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=4).map(
            lambda rows: "{" + ", ".join(f"{key}: {value}" for key, value in rows) + "}"
        ),
    ),
    max_leaves=12,
)
YAML_LIKE = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=6).map(
    lambda rows: "version: v1\n" + "\n".join(f"{key}: {value}" for key, value in rows)
)

QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def complaints(text: str) -> list[str]:
    """The lines about a text; any other exception than ConfigInvalid fails the test."""
    try:
        parse(text, "c.yaml")
    except ConfigInvalid as err:
        return [str(problem) for problem in err.problems]
    return []


def survives(text: str) -> None:
    for line in complaints(text):
        assert line.isprintable()
        assert len(line) < 1000


@QUICK
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    survives(text)


@QUICK
@given(YAML_LIKE)
def test_anything_that_looks_like_a_configuration_is_read_or_refused(text: str) -> None:
    survives(text)


@QUICK
@given(data=st.binary(max_size=80))
def test_any_bytes_in_the_file_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    with contextlib.suppress(ConfigInvalid):
        load(Paths(tmp_path), path)


@QUICK
@given(st.integers(0, len(DESIGN_EXAMPLE) - 1), st.sampled_from("[]{}:,-*&!|>%@`'\"#\n\t \0x9"))
def test_one_wrong_character_never_breaks_the_reader(index: int, char: str) -> None:
    survives(DESIGN_EXAMPLE[:index] + char + DESIGN_EXAMPLE[index + 1 :])


@pytest.mark.parametrize("opening", ["[", "{", "{a: ", "- ", "? ", "!a ", "&a ", '"', "|\n "])
def test_half_a_megabyte_of_openings_is_refused_in_few_words(opening: str) -> None:
    assert len(complaints(opening * (500_000 // len(opening)))) in (1, 2)


def test_laughing_billions_do_not_expand() -> None:
    rows = ["version: v1", 'a0: &a0 "lol"']
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert len(lines_of("\n".join(rows))) == 101  # a hundred, and how many more


# --------------------------------------------------------------------------- problems


def test_a_problem_without_a_place_or_hint_is_its_message() -> None:
    assert str(Problem(None, "", "it is wrong")) == "it is wrong"
    full = Problem(Mark("f", 1, 2), "a.b", "it is wrong", "x", "y")
    assert str(full) == "f:1:2: a.b: it is wrong; expected x; did you mean y?"
    assert str(replace(full, want="", nearest=None)) == "f:1:2: a.b: it is wrong"


@pytest.mark.parametrize(
    ("word", "found"),
    [("1g.19gb", "1g.18gb"), ("h200x-1-18c", "H200X-1-18C"), ("zzz", None), ("", None)],
)
def test_the_nearest_word(word: str, found: str | None) -> None:
    assert nearest(word, ["1g.18gb", "7g.141gb", "H200X-1-18C"]) == found


def test_a_list_without_problems_raises_nothing() -> None:
    ProblemList().raise_if_any(())


def test_mode_vgpu_alone_asks_for_vfs_without_types() -> None:
    text = "version: v1\ngpus: [{match: {index: 0}, profile: {mode: vgpu}}]\n"
    profile = parse(text, "c.yaml").entries[0].profile
    assert (profile.mode, profile.mig, profile.vgpus) == (Mode.VGPU, None, ())
