"""Virtual time and the trace of changes."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError
from functools import partial

import pytest

from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import Bdf
from gpu_bootstate.side_by_side import side_by_side
from gpu_bootstate.simulator.hardware import LATENCY_S, SimHardware
from gpu_bootstate.simulator.node import VGPU_MGR, SimNode, new_node
from gpu_bootstate.simulator.state import UnitChange

A, B = Bdf.parse("0000:17:00.0"), Bdf.parse("0000:3d:00.0")


def _free() -> tuple[SimNode, SimHardware]:
    node = new_node("hgx-h200-8")
    for gpu in node.state.gpus:
        gpu.persistence = False
    return node, SimHardware(node)


def test_a_thread_starts_where_the_main_thread_was_and_not_where_another_got() -> None:
    _, hw = _free()
    start = hw.now()

    def wait(seconds: float) -> float:
        hw.sleep(seconds)
        return hw.now() - start

    assert side_by_side([partial(wait, s) for s in (9.0, 1.0, 4.0)], limit=1) == [
        pytest.approx(9.0),
        pytest.approx(1.0),
        pytest.approx(4.0),
    ]


def test_the_next_phase_starts_when_the_slowest_has_ended() -> None:
    _, hw = _free()
    start = hw.now()
    side_by_side([partial(hw.sleep, s) for s in (9.0, 1.0)], limit=2)
    assert hw.now() - start == pytest.approx(9.0)
    starts = side_by_side([hw.now, hw.now], limit=2)
    assert starts == [pytest.approx(start + 9.0)] * 2


def test_eight_resets_side_by_side_take_the_time_of_one() -> None:
    _, hw = _free()
    start = hw.now()
    resets = [partial(hw.reset_gpu, pci.bdf, timeout_s=60.0) for pci in hw.pfs()]
    side_by_side(resets, limit=8)
    assert hw.now() - start == pytest.approx(LATENCY_S["reset_gpu"], abs=0.1)


def test_a_wait_ends_at_the_first_change_on_the_bus_or_at_its_limit() -> None:
    node, hw = _free()
    gpu = node.state.gpus[0]
    start = hw.now()
    node.make_vfs(gpu, 2, ready_at=start + 3.0)
    gpu.vfs[1].ready_at = start + 5.0
    for limit, expected in ((2.0, 2.0), (2.0, 3.0), (60.0, 5.0), (4.0, 9.0)):
        hw.wait_for_event(limit)
        assert hw.now() - start == pytest.approx(expected)


def test_a_unit_that_changes_announces_nothing_to_the_bus() -> None:
    node, hw = _free()
    start = hw.now()
    node.state.units[VGPU_MGR].changes = [UnitChange(start + 1.0, "failed")]
    hw.wait_for_event(10.0)
    assert hw.now() - start == pytest.approx(10.0)


def test_waits_that_were_cancelled_take_no_time() -> None:
    _, hw = _free()
    hw.cancel_waits()
    start = hw.now()
    hw.sleep(100.0)
    hw.wait_for_event(100.0)
    assert hw.now() == start


def test_pace_is_slept_in_real_time_until_cancelled() -> None:
    node, _ = _free()
    node.state.pace = 3600.0  # an hour for each second: it would be noticed
    hw = SimHardware(node)
    waiting = threading.Thread(target=hw.sleep, args=(1.0,))
    waiting.start()
    assert waiting.is_alive()
    hw.cancel_waits()
    waiting.join(timeout=60.0)
    assert not waiting.is_alive()


def test_without_latencies_no_call_takes_time() -> None:
    node, hw = _free()
    node.state.latency = "none"
    start = hw.now()
    hw.set_mig_mode(A, enabled=True)
    hw.sriov_manage(A, enable=True, timeout_s=60.0)
    hw.stop_unit(VGPU_MGR)
    hw.facts(A)
    assert hw.now() == start


def test_the_trace_has_every_change_in_order_with_the_time_of_its_start() -> None:
    _, hw = _free()
    start = hw.now()
    hw.set_mig_mode(A, enabled=True)
    hw.facts(A)
    with pytest.raises(HardwareError):
        hw.bind_driver(B)  # it is bound
    hw.stop_unit(VGPU_MGR)
    assert [(call.verb, call.target, call.ok) for call in hw.calls] == [
        ("set_mig_mode", str(A), True),
        ("bind_driver", str(B), False),
        ("stop_unit", VGPU_MGR, True),
    ]
    first, second, _ = (call.time_s for call in hw.calls)
    assert first == pytest.approx(start)
    assert second == pytest.approx(start + LATENCY_S["set_mig_mode"], abs=0.01)
    with pytest.raises(FrozenInstanceError):
        hw.calls[0].ok = False  # type: ignore[misc]  # that it cannot be is the point


def test_changes_from_many_threads_are_all_in_the_trace() -> None:
    _, hw = _free()
    pfs = [pci.bdf for pci in hw.pfs()]

    def work(pf: Bdf) -> None:
        for number in range(20):
            hw.set_persistence(pf, enabled=bool(number % 2))

    side_by_side([partial(work, pf) for pf in pfs], limit=8)
    assert len(hw.calls) == 160
    for pf in pfs:
        times = [call.time_s for call in hw.calls if call.target == str(pf)]
        assert times == sorted(times)
