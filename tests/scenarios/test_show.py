"""`show`: what it draws is what is there, and what it promises is what `apply` makes."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gpu_bootstate.cli.look import View
from gpu_bootstate.picture import GpuPicture, pictures, svg, text
from tests.support.node import Node, config

REPO = Path(__file__).parents[2]
A, B = "0000:17:00.0", "0000:3d:00.0"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
MIXED = (
    "{mig: {3g.71gb: 1, 2g.35gb: 1, 1g.18gb: 1}, "
    "vgpus: {H200X-3-71C: 1, H200X-2-35C: 1, H200X-1-18C: 1}}"
)
HALVES = "{vgpus: {H200X-70C: 2}}"
BARE = "{mode: none}"
LAYOUTS = {"seven": SEVEN, "mixed": MIXED, "halves": HALVES, "bare": BARE}


def drawn(view: View) -> tuple[GpuPicture, ...]:
    return pictures(view.node, view.plan)


def of(view: View, pf: str) -> GpuPicture:
    return next(each for each in drawn(view) if str(each.pf) == pf)


@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_what_would_be_is_what_apply_makes(tmp_path: Path, before: str, after: str) -> None:
    node = Node("hgx-h200-8", tmp_path)
    node.apply(config({A: LAYOUTS[before]}))
    wanted = config({A: LAYOUTS[after]})
    promise = of(node.look(wanted), A)
    assert node.apply(wanted)["condition"] == "converged"
    kept = of(node.look(wanted), A)
    assert kept.then is None
    assert kept.note == ""
    assert kept.now == (promise.then or promise.now)


def test_a_change_that_is_refused_draws_what_is_and_says_why(tmp_path: Path) -> None:
    node = Node("hgx-h200-8", tmp_path)
    node.apply(config({A: HALVES}))
    node.with_vm(A, 0)
    found = of(node.look(config({A: SEVEN})), A)
    assert found.then is None
    assert "qemu-system-x86" in found.note
    assert found.now is not None
    assert found.now.types == ((0, "H200X-70C"), (1, "H200X-70C"))


def test_the_text_is_read_at_a_glance(tmp_path: Path) -> None:
    node = Node("a100-pcie-2", tmp_path)
    pfs = [gpu.bdf for gpu in node.gpus()]
    node.apply(config({pfs[0]: "{mig: {3g.20gb: 1, 1g.5gb: 2}, vgpus: {A100-3-20C: 1}}"}))
    wanted = config({pfs[0]: "{mig: {2g.10gb: 3}, vgpus: {A100-2-10C: 3}}"})
    assert text(drawn(node.look(wanted))) == (
        "0000:3b:00.0  A100-PCIE-40GB  gpus[0].profile\n"
        "  now   MIG  |                3g.20gb                |  1g.5gb |  1g.5gb "
        "|.........|.........|\n"
        "        VFs  A...................  A: 1 x GRID A100-3-20C\n"
        "  then  MIG  |      2g.10gb      |      2g.10gb      |      2g.10gb      "
        "|.........|.........|\n"
        "        VFs  BBB.................  B: 3 x GRID A100-2-10C\n"
        "0000:d8:00.0  A100-PCIE-40GB\n"
        "  now   no VFs\n"
        "        not in the configuration, left alone\n"
    )


def test_the_svg_is_well_formed_and_has_every_instance_and_type(tmp_path: Path) -> None:
    node = Node("hgx-h200-8", tmp_path)
    node.apply(config({A: MIXED}))
    drawing = svg(drawn(node.look(config({A: SEVEN, B: HALVES}))))
    root = ElementTree.fromstring(drawing)  # noqa: S314  # our own
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("3g.71gb") == 1
    assert words.count("1g.18gb") == 1 + 7
    assert "7 x H200X-1-18C; 32 VFs" in words
    assert "2 x H200X-70C; 32 VFs" in words
    assert words.count("not in the configuration, left alone") == 6
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    width = float(root.attrib["width"])
    for box in boxes[1:]:
        assert float(box.attrib["x"]) >= 0
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width


def test_names_are_escaped(tmp_path: Path) -> None:
    node = Node("hgx-h200-8", tmp_path)
    node.apply(config({A: HALVES}))
    node.with_vm(A, 0, name="<&>")
    ElementTree.fromstring(svg(drawn(node.look(config({A: SEVEN})))))  # noqa: S314


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "gpu_bootstate", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )


def test_the_command_draws_a_file_on_a_board_that_is_not_here(tmp_path: Path) -> None:
    done = run("show", "--board", "hgx-h200-8", "config/config.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("A: 7 x H200X-1-18C") == 4
    target = tmp_path / "node.svg"
    done = run("show", "--board", "hgx-h200-8", "config/config.yaml", "--svg", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert target.read_text().count(">1g.18gb<") == 4 * 7
    printed = run("show", "--board", "hgx-h200-8", "config/config.yaml", "--svg", "-")
    assert printed.stdout == target.read_text()


def test_a_file_that_is_wrong_and_a_board_that_is_unknown_are_said(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: v1\ngpuz: []\n")
    done = run("show", "--board", "hgx-h200-8", str(wrong))
    assert done.returncode == 4
    assert "gpuz" in done.stderr
    done = run("show", "--board", "hgx-h2000-8", "config/config.yaml")
    assert done.returncode == 2
    assert "hgx-h200-8" in done.stderr
