"""A simulated node in a directory: one node for all processes, whole after a kill."""

from __future__ import annotations

import json
import multiprocessing
import signal
from pathlib import Path

import pytest

from gpu_bootstate.catalog.reader import UnknownBoard
from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import Bdf
from gpu_bootstate.simulator.faults import parse_fault
from gpu_bootstate.simulator.hardware import SimHardware
from gpu_bootstate.simulator.store import DamagedStore, Store, StoreError, WrongBoard

PF = Bdf.parse("0000:01:00.0")
BOARD = "l40s-4"
_FORK = multiprocessing.get_context("fork")


def _hardware(directory: Path) -> SimHardware:
    store = Store.open(directory, BOARD)
    return SimHardware(store.node, store)


def _toggle(directory: Path, pf: str, times: int) -> None:
    hw = _hardware(directory)
    for number in range(times):
        hw.set_persistence(Bdf.parse(pf), enabled=bool(number % 2))


def _in_another_process(directory: Path) -> int | None:
    process = _FORK.Process(target=_toggle, args=(directory, str(PF), 1))
    process.start()
    process.join()
    return process.exitcode


def test_a_change_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    hw = _hardware(tmp_path)
    hw.set_persistence(PF, enabled=False)
    data = json.loads((tmp_path / "node.json").read_text())
    assert data["gpus"][0]["persistence"] is False
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    call = json.loads(line)
    assert (call["verb"], call["target"], call["ok"]) == ("set_persistence", str(PF), True)


def test_a_failed_change_is_in_the_trace_too(tmp_path: Path) -> None:
    hw = _hardware(tmp_path)
    with pytest.raises(HardwareError):
        hw.set_mig_mode(PF, enabled=True)  # an L40S has no MIG
    with pytest.raises(HardwareError):
        hw.stop_unit("no-such.service")
    trace = Store.open(tmp_path, BOARD).trace
    assert [(call["verb"], call["ok"]) for call in trace] == [
        ("set_mig_mode", False),
        ("stop_unit", False),
    ]


def test_what_a_unit_was_told_is_known_to_the_next_command(tmp_path: Path) -> None:
    hw = _hardware(tmp_path)
    hw.stop_unit("nvidia-persistenced.service")
    hw.close()
    after = _hardware(tmp_path)
    after.sleep(1.0)
    assert after.unit_state("nvidia-persistenced.service").active_state == "inactive"
    assert after.facts(PF).persistence is False


def test_the_clock_goes_on_where_the_last_command_ended(tmp_path: Path) -> None:
    hw = _hardware(tmp_path)
    hw.sleep(100.0)
    ended = hw.now()
    hw.close()
    assert _hardware(tmp_path).now() == pytest.approx(ended)


@pytest.mark.parametrize(("effect", "made"), [("kill-before", False), ("kill-after", True)])
def test_a_killed_process_leaves_what_it_had_done(
    tmp_path: Path, effect: str, *, made: bool
) -> None:
    store = Store.open(tmp_path, BOARD)
    with store.change() as node:
        node.state.faults.append(parse_fault(f"set_persistence nth=1 {effect}"))
    assert _in_another_process(tmp_path) == -signal.SIGKILL
    assert store.node.state.gpus[0].persistence is not made
    assert len(store.trace) == int(made)
    assert store.node.state.faults[0].seen == 1  # so that the next run is not killed again
    assert _in_another_process(tmp_path) == 0


def test_two_processes_at_once_lose_none_of_each_others_changes(tmp_path: Path) -> None:
    Store.open(tmp_path, BOARD)
    pfs = ("0000:01:00.0", "0000:25:00.0")
    processes = [_FORK.Process(target=_toggle, args=(tmp_path, pf, 15)) for pf in pfs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    store = Store.open(tmp_path, BOARD)
    assert [gpu.persistence for gpu in store.node.state.gpus[:2]] == [False, False]
    assert len(store.trace) == 30


def _read_often(directory: Path, times: int) -> None:
    hw = _hardware(directory)
    for _ in range(times):
        hw.facts(PF)


def test_a_fault_met_by_a_read_is_counted_without_undoing_anyones_change(tmp_path: Path) -> None:
    with Store.open(tmp_path, BOARD).change() as node:
        node.state.faults.append(parse_fault("facts nth=1000 error:unknown"))
    reader = _FORK.Process(target=_read_often, args=(tmp_path, 30))
    reader.start()
    _toggle(tmp_path, str(PF), 15)
    reader.join()
    assert reader.exitcode == 0
    store = Store.open(tmp_path, BOARD)
    assert store.node.state.gpus[0].persistence is False
    assert len(store.trace) == 15


def test_every_write_is_told_from_the_one_before(tmp_path: Path) -> None:
    store = Store.open(tmp_path, BOARD)
    stamps = set()
    for _ in range(20):
        with store.change():
            pass
        stamps.add((tmp_path / "node.json").stat().st_mtime_ns)
    assert len(stamps) == 20


def test_a_reboot_empties_run_and_keeps_etc_and_var(tmp_path: Path) -> None:
    store = Store.open(tmp_path, BOARD)
    before = store.node.state.boot
    for top in ("etc", "run", "var"):
        (tmp_path / "root" / top).mkdir(parents=True)
    store.reboot()
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["etc", "var"]
    assert Store.open(tmp_path, BOARD).node.state.boot == before + 1


def test_a_directory_of_another_board_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path, BOARD)
    with pytest.raises(WrongBoard, match="holds a node of the board l40s-4, not of hgx-h200-8"):
        Store.open(tmp_path, "hgx-h200-8")


def test_an_unknown_board_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UnknownBoard):
        Store.open(tmp_path / "new", "l40x-4")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"board": "l40x-4"}', '{"board": 1, "x": 2}']
)
def test_a_file_that_is_no_node_is_told_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(StoreError, match=r"node\.json"):
        Store.open(tmp_path, BOARD)


def test_a_node_whose_file_went_away_is_told(tmp_path: Path) -> None:
    hw = _hardware(tmp_path)
    (tmp_path / "node.json").unlink()
    with pytest.raises(DamagedStore):
        hw.pfs()


def test_a_damaged_trace_is_told(tmp_path: Path) -> None:
    store = Store.open(tmp_path, BOARD)
    (tmp_path / "trace.jsonl").write_text('{"verb": "set_pers')
    with pytest.raises(DamagedStore, match=r"trace\.jsonl"):
        _ = store.trace
