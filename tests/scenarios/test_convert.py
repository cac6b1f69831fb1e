"""`convert`: files of other tools as they are, to a configuration that our own parser takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_bootstate.config import parse
from gpu_bootstate.conversion import converted
from gpu_bootstate.importers import read_layouts
from gpu_bootstate.problems import ConfigInvalid

REPO = Path(__file__).parents[2]
ENTRY = {
    "mig": "version: v1\nmig-configs:\n  x:\n  - {%s}\n",
    "vgpu": "version: v1\nvgpu-configs:\n  x:\n  - {%s}\n",
}
SEVEN = 'devices: all, mig-enabled: true, mig-devices: {"1g.18gb": 7}'


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("mig", SEVEN),
        ("mig", "devices: all, mig-enabled: false"),
        ("mig", "devices: [0, 1, 2], mig-enabled: false"),
        ("mig", f"device-filter: MODEL, {SEVEN}"),
        ("mig", f'device-filter: ["0x233510DE", "0x232110DE:0x183910DE"], {SEVEN}'),
        ("mig", "devices: all, mig-enabled: true, mig-devices: {}"),
        ("mig", 'devices: all, mig-enabled: true, mig-devices: {"0g.0gb": 100}'),
        ("mig", 'devices: [1], mig-enabled: true, mig-devices: {"1g.10gb+me": 1, "1g.10gb": 6}'),
        (
            "mig",
            'devices: all, mig-enabled: true, mig-devices: {"1g.24gb-me": 3}',
        ),
        ("mig", 'devices: all, mig-enabled: true, mig-devices: {"1c.3g.20gb": 3}'),
        ("mig", 'devices: all, mig-enabled: true, mig-devices: {"1g.24gb+me.all": 1}'),
        ("vgpu", "devices: all, vgpu-devices: {}"),
        ("vgpu", "devices: [0, 3], vgpu-devices: {T4-4Q: 4}"),
        ("vgpu", 'device-filter: "0x233510DE", devices: all, vgpu-devices: {H200X-1-18C: 7}'),
    ],
)
def test_what_the_tools_take_becomes_a_configuration(kind: str, entry: str) -> None:
    text = converted(read_layouts(ENTRY[kind] % entry, "f"), "x", (), "f")
    parse(text, "converted.yaml")


@pytest.mark.parametrize(
    ("kind", "entry", "says"),
    [
        ("mig", "mig-enabled: false", "the key devices is missing"),
        ("mig", "devices: all", "the key mig-enabled is missing"),
        ("mig", "devices: all, mig-enabled: true", "mig-enabled without mig-devices"),
        ("mig", f"bogus: 1, {SEVEN}", "unknown key 'bogus'"),
        ("mig", "devices: some, mig-enabled: false", "'some' is not valid"),
        ("mig", "devices: {}, mig-enabled: false", "is a mapping"),
        ("mig", "devices: all, mig-enabled: true, mig-devices: {bogus: 1}", "is no MIG device"),
        (
            "mig",
            'devices: all, mig-enabled: false, mig-devices: {"1g.18gb": 1}',
            "mig-devices where mig-enabled is false",
        ),
        ("vgpu", "devices: all", "the key vgpu-devices is missing"),
        ("vgpu", "devices: all, vgpu-devices: {H200X-141C: 0}", "'0' is not valid"),
    ],
)
def test_what_the_tools_refuse_is_refused_with_its_place(kind: str, entry: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as invalid:
        read_layouts(ENTRY[kind] % entry, "f")
    assert says in str(invalid.value)
    assert str(invalid.value).startswith("f:4:")


@pytest.mark.parametrize(
    "text",
    ["version: v2\n", "mig-configs: {}\n", "version: v1\nmig-configs: {}\n", "version: v1\nx: 1\n"],
)
def test_a_document_that_is_none_of_theirs_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        read_layouts(text, "f")


def test_a_configmap_is_looked_into_and_marks_name_its_key() -> None:
    inner = (ENTRY["vgpu"] % "devices: all, vgpu-devices: {H200X-141C: 1}").replace("\n", "\n    ")
    wrapped = f"kind: ConfigMap\napiVersion: v1\ndata:\n  config.yaml: |\n    {inner}\n"
    assert [layout.name for layout in read_layouts(wrapped, "cm.yaml")] == ["x"]
    with pytest.raises(ConfigInvalid, match=r"cm\.yaml#config\.yaml:4:"):
        read_layouts(wrapped.replace("H200X-141C: 1", "H200X-141C: 0"), "cm.yaml")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "gpu_bootstate", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )


def test_apply_from_is_apply_of_what_convert_prints(tmp_path: Path) -> None:
    file = tmp_path / "mig-parted.yaml"
    file.write_text(ENTRY["mig"] % f'device-filter: "0x233510DE", {SEVEN}')
    sim = ("--simulate", "hgx-h200-8", "--sim-dir", tmp_path / "sim")
    done = run(*sim, "apply", "--from", file, "--select", "x")
    assert done.returncode == 0, done.stderr
    text = run(*sim, "convert", file, "--select", "x").stdout
    assert text.count("0000:17:00.0") == 1
    (tmp_path / "c.yaml").write_text(text)
    done = run(*sim, "--config", tmp_path / "c.yaml", "plan", "--exit-code")
    assert done.returncode == 0, done.stdout
    unknown = run(*sim, "convert", file, "--select", "y")
    assert (unknown.returncode, "There is no layout y in it." in unknown.stderr) == (4, True)
