"""What a run says while it works: lines, the unit's status, and the table, each compared whole."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Callable
from typing import Any

import pytest

from gpu_bootstate.model import (
    Bdf,
    CreateGpuInstance,
    EnableVfs,
    GpuOutcome,
    Phase,
    Placement,
    Policy,
    ResetGpu,
    SetMigMode,
    Step,
    StepOutcome,
    StepStatus,
)
from gpu_bootstate.notify import Journal, Notifier
from gpu_bootstate.progress import (
    JournalListener,
    Listener,
    NotifyListener,
    Several,
    Silent,
    TerminalListener,
    listener_on,
)
from gpu_bootstate.reasons import Code, Condition, Finding

A, B = Bdf.parse("17:00.0"), Bdf.parse("3d:00.0")
MIG = SetMigMode(A, "it is off", enabled=True)
VFS_A, VFS_B = (EnableVfs(pf, "the VFs are off", 32) for pf in (A, B))
TOO_FEW = Finding.of(Code.VFS_TOO_FEW, pf=B, found=16, wanted=32)
HELD = Finding.of(Code.HELD, pf=A, holder="dcgm (pid 7)", wanted="enable 32 VFs")
CYCLED = Finding.of(Code.VFS_CYCLED, pf=A)


class Clock:
    """Hardware.now() of a test."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def done(step: Step, duration_s: float, attempts: int = 1) -> StepOutcome:
    return StepOutcome(step, StepStatus.DONE, 1000.0, duration_s, attempts)


def failed(step: Step, duration_s: float, finding: Finding) -> StepOutcome:
    return StepOutcome(step, StepStatus.FAILED, 1000.0, duration_s, finding=finding)


def ended(
    pf: Bdf,
    *steps: StepOutcome,
    condition: Condition = Condition.CONVERGED,
    findings: tuple[Finding, ...] = (),
    stopped_in: Phase | None = None,
) -> GpuOutcome:
    return GpuOutcome(pf, "seven", condition, findings, steps, (), stopped_in)


def whole_run(listener: Listener, clock: Clock) -> None:
    """A comes up, B does not get all its VFs."""
    listener.waiting("nvidia-vgpu-mgr", 1090.0)
    listener.phase_started(Phase.MIG_MODE, (A,))
    listener.step_started(MIG)
    listener.step_finished(done(MIG, 1.04))
    listener.phase_finished(Phase.MIG_MODE, 1.04)
    listener.phase_started(Phase.VFS, (A, B))
    listener.step_started(VFS_A)
    listener.step_finished(done(VFS_A, 8.0, attempts=3))
    listener.step_started(VFS_B)
    listener.waiting("all VFs", 1060.0, pf=B)
    clock.now_s += 9
    listener.waiting("all VFs", 1060.0, pf=B)
    clock.now_s += 2
    listener.waiting("all VFs", 1060.0, pf=B)
    listener.said(TOO_FEW)
    listener.step_finished(failed(VFS_B, 60.0, TOO_FEW))
    listener.phase_finished(Phase.VFS, 68.0)
    listener.said(CYCLED)
    listener.gpu_finished(ended(A, done(MIG, 1.04), done(VFS_A, 8.0)))
    bad = Condition.FAILED
    listener.gpu_finished(ended(B, condition=bad, findings=(TOO_FEW,), stopped_in=Phase.VFS))


TOO_FEW_TEXT = "0000:3d:00.0: 16 of 32 VFs came up."
TOO_FEW_REMEDY = (
    "Look at `journalctl -k -g SR-IOV`; `policy: allow-fewer-vfs: true` accepts them if enough "
    "for the vGPUs asked for."
)
CYCLED_TEXT = "0000:17:00.0: the VFs offered no vGPU types and were switched off and on once."


# --------------------------------------------------------------------------- lines


def test_lines_of_a_whole_run(clock: Clock) -> None:
    stream = io.StringIO()

    whole_run(JournalListener(Journal(stream), clock), clock)

    assert stream.getvalue().splitlines() == [
        "waiting for nvidia-vgpu-mgr, at most 90 s more",
        "phase mig-mode: 1 GPU",
        "0000:17:00.0: mig-mode: set MIG mode on: done (1.0 s)",
        "phase mig-mode: over after 1.0 s",
        "phase vfs: 2 GPUs",
        "0000:17:00.0: vfs: enable 32 VFs (sriov-manage -e): done (8.0 s, attempt 3)",
        "0000:3d:00.0: waiting for all VFs, at most 60 s more",
        "0000:3d:00.0: waiting for all VFs, at most 49 s more",
        f"{TOO_FEW_TEXT} {TOO_FEW_REMEDY}",
        "phase vfs: over after 68.0 s",
        CYCLED_TEXT,
        "0000:17:00.0: seven: converged after 2 steps",
        "0000:3d:00.0: seven: failed in phase vfs (vfs-too-few)",
    ]


class RecordedJournal(Journal):
    """Keeps the fields; the bytes are tested with `notify`."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.entries: list[dict[str, Any]] = []

    def send(self, text: str, *, event: str, priority: int = 6, **fields: str) -> None:
        self.entries.append({"event": event, "priority": priority, **fields})


def test_fields_of_a_whole_run(clock: Clock) -> None:
    journal = RecordedJournal()

    whole_run(JournalListener(journal, clock), clock)

    a, b = str(A), str(B)
    vfs_usec = {"PHASE": "vfs", "DURATION_USEC": "8000000"}
    assert journal.entries == [
        {"event": "waiting", "priority": 6},
        {"event": "phase-started", "priority": 6, "PHASE": "mig-mode"},
        {
            "event": "step-finished",
            "priority": 6,
            "GPU_BDF": a,
            "PHASE": "mig-mode",
            "STEP": "set-mig-mode",
            "DURATION_USEC": "1040000",
        },
        {
            "event": "phase-finished",
            "priority": 6,
            "PHASE": "mig-mode",
            "DURATION_USEC": "1040000",
        },
        {"event": "phase-started", "priority": 6, "PHASE": "vfs"},
        {"event": "step-finished", "priority": 6, "GPU_BDF": a, "STEP": "enable-vfs", **vfs_usec},
        {"event": "waiting", "priority": 6, "GPU_BDF": b},
        {"event": "waiting", "priority": 6, "GPU_BDF": b},
        {"event": "vfs-too-few", "priority": 3, "GPU_BDF": b, "REASON": "vfs-too-few"},
        {"event": "phase-finished", "priority": 6, "PHASE": "vfs", "DURATION_USEC": "68000000"},
        {"event": "vfs-cycled", "priority": 5, "GPU_BDF": a, "REASON": "vfs-cycled"},
        {"event": "gpu-finished", "priority": 5, "GPU_BDF": a},
        {"event": "gpu-finished", "priority": 5, "GPU_BDF": b, "REASON": "vfs-too-few"},
    ]


def test_refusal_is_a_warning_and_said_once(clock: Clock) -> None:
    journal = RecordedJournal()
    listener = JournalListener(journal, clock)

    listener.said(HELD)
    listener.said(HELD)

    assert [(entry["event"], entry["priority"]) for entry in journal.entries] == [("held", 4)]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (ended(A), "converged, nothing to do"),
        (ended(A, done(MIG, 1.0)), "converged after 1 step"),
        (ended(A, condition=Condition.REFUSED, findings=(HELD,)), "refused (held)"),
        (ended(A, condition=Condition.DEADLINE), "deadline after 0 steps"),
    ],
)
def test_result_of_a_gpu_in_a_line(outcome: GpuOutcome, words: str, clock: Clock) -> None:
    stream = io.StringIO()
    JournalListener(Journal(stream), clock).gpu_finished(outcome)
    assert stream.getvalue() == f"0000:17:00.0: seven: {words}\n"


def test_step_that_was_not_needed_says_so(clock: Clock) -> None:
    stream = io.StringIO()
    outcome = StepOutcome(MIG, StepStatus.SKIPPED, 1000.0, 0.01)
    JournalListener(Journal(stream), clock).step_finished(outcome)
    assert stream.getvalue() == (
        "0000:17:00.0: mig-mode: set MIG mode on: not needed any more (0.0 s)\n"
    )


# --------------------------------------------------------------------------- several


class Names(Silent):
    def __init__(self, told: list[str], name: str) -> None:
        self.told, self.name = told, name

    def said(self, finding: Finding) -> None:
        self.told.append(f"{self.name}: {finding.code.value}")

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        self.told.append(f"{self.name}: {what} {until_s} {pf}")


def test_several_hear_the_same_in_order(clock: Clock) -> None:
    told: list[str] = []
    stream = io.StringIO()
    journal = JournalListener(Journal(stream), clock)
    both = Several([Names(told, "one"), journal, Names(told, "two")])

    both.waiting("x", 5.0, pf=A)
    both.said(CYCLED)
    assert told == [
        "one: x 5.0 0000:17:00.0",
        "two: x 5.0 0000:17:00.0",
        "one: vfs-cycled",
        "two: vfs-cycled",
    ]

    stream.truncate(0)
    whole_run(both, clock)
    assert "phase vfs: over after 68.0 s" in stream.getvalue()
    assert "0000:17:00.0: seven: converged after 2 steps" in stream.getvalue()


# --------------------------------------------------------------------------- systemd


class RecordedNotifier(Notifier):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def _send(self, text: str) -> None:
        self.sent.append(text)


def test_systemd_is_told_what_is_done_and_for_how_long_to_wait(clock: Clock) -> None:
    notifier = RecordedNotifier()
    listener = NotifyListener(notifier, clock, Policy(tool_s=120.0, deadline_s=480.0))

    listener.phase_started(Phase.VFS, (A, B))
    clock.now_s += 10
    listener.step_started(VFS_A)
    listener.waiting("all VFs", 1100.0, pf=A)

    assert notifier.sent == [
        "STATUS=Phase vfs: 2 GPUs",
        "EXTEND_TIMEOUT_USEC=150000000",  # as long as the vendor tool may be silent, and more
        "STATUS=0000:17:00.0: enable 32 VFs (sriov-manage -e)",
        "EXTEND_TIMEOUT_USEC=150000000",
        "EXTEND_TIMEOUT_USEC=240000000",  # until the wait is over, and a tool after it
        "STATUS=0000:17:00.0: waiting for all VFs",
    ]


def test_waits_of_many_gpus_do_not_flood_systemd(clock: Clock) -> None:
    notifier = RecordedNotifier()
    listener = NotifyListener(notifier, clock)

    for _ in range(40):
        listener.waiting("all VFs", 1060.0, pf=A)
        listener.waiting("all VFs", 1060.0, pf=B)
        clock.now_s += 0.25

    assert len(notifier.sent) < 15


def test_no_more_time_is_asked_for_once_the_run_should_be_over(clock: Clock) -> None:
    notifier = RecordedNotifier()
    listener = NotifyListener(notifier, clock, Policy(tool_s=10.0, deadline_s=100.0))
    end_s = clock.now_s + 100 + 40

    asked_until = set()
    for _ in range(100):
        listener.waiting("what never comes", 99999.0)
        extensions = [text for text in notifier.sent if text.startswith("EXTEND_TIMEOUT_USEC=")]
        asked_until |= {clock.now_s + int(text.split("=")[1]) / 1e6 for text in extensions}
        notifier.sent.clear()
        clock.now_s += 5

    assert asked_until == {end_s}


# --------------------------------------------------------------------------- the table


class Screen(io.StringIO):
    """A terminal that knows the sequences which the table uses, and no others."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        shown, row = [""], 0
        for piece in re.findall(r"\x1b\[\d*[A-Z]|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if up := re.fullmatch(r"\x1b\[(\d+)A", piece):
                row -= int(up[1])
                assert row >= 0, "above the top of the screen"
            elif piece == "\x1b[J":
                shown[row:] = [""]
            elif piece == "\n":
                row += 1
                shown.extend([""] * (row + 1 - len(shown)))
            elif piece != "\r":
                assert not piece.startswith("\x1b"), piece
                shown[row] = piece
        return shown


def table(clock: Clock) -> tuple[TerminalListener, Screen]:
    screen = Screen()
    return TerminalListener(screen, clock), screen


def test_table_in_the_middle_of_a_run(clock: Clock) -> None:
    listener, screen = table(clock)

    listener.waiting("nvidia-vgpu-mgr", 1090.0)
    assert screen.lines == ["waiting for nvidia-vgpu-mgr (at most 90 s more)", ""]

    listener.phase_started(Phase.VFS, (A, B))
    listener.step_started(VFS_A)
    listener.waiting("all VFs", 1060.0, pf=A)
    clock.now_s += 20
    listener.waiting("all VFs", 1060.0, pf=A)
    assert screen.lines == [
        "GPU           vfs",
        "0000:17:00.0  ...       waiting for all VFs (at most 40 s more)",
        "0000:3d:00.0  -",
        "",
    ]


def test_table_at_the_end_of_a_run_under_what_was_said(clock: Clock) -> None:
    listener, screen = table(clock)

    whole_run(listener, clock)

    assert screen.lines == [
        TOO_FEW_TEXT,
        f"  {TOO_FEW_REMEDY}",
        CYCLED_TEXT,
        "GPU           mig-mode  vfs",
        "0000:17:00.0  1.0 s     8.0 s     converged after 2 steps",
        "0000:3d:00.0            FAILED    failed in phase vfs (vfs-too-few)",
        "",
    ]


def test_table_does_not_flicker_when_nothing_is_new(clock: Clock) -> None:
    listener, screen = table(clock)
    listener.phase_started(Phase.VFS, (A,))
    listener.waiting("all VFs", 1060.0, pf=A)
    written = screen.getvalue()

    listener.waiting("all VFs", 1060.0, pf=A)

    assert screen.getvalue() == written


def test_table_stays_within_the_screen(clock: Clock) -> None:
    listener, screen = table(clock)  # 80 by 24, as nobody says otherwise
    pfs = tuple(Bdf(0, bus, 0, 0) for bus in range(64))

    listener.phase_started(Phase.VFS, pfs)
    listener.waiting("w" * 200, 1060.0, pf=pfs[0])

    assert len(screen.lines) == 24
    assert screen.lines[-2] == "(43 more lines than this terminal shows)"
    assert max(map(len, screen.lines)) == 79


def test_terminal_that_went_away_ends_nothing(clock: Clock) -> None:
    listener, screen = table(clock)
    screen.close()

    whole_run(listener, clock)


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Screen, "xterm", TerminalListener),
        (Screen, "dumb", JournalListener),
        (io.StringIO, "xterm", JournalListener),
    ],
)
def test_table_only_where_a_terminal_can_show_it(
    stream: Callable[[], io.StringIO],
    term: str,
    kind: type[Listener],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(listener_on(stream(), clock)) is kind


def test_width_is_that_of_the_terminal(clock: Clock) -> None:
    """On a real pseudo terminal."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as shown, os.fdopen(theirs, "w") as stream:
        set_size(stream.fileno(), lines=10, columns=30)
        listener = TerminalListener(stream, clock)
        listener.phase_started(Phase.VFS, (A,))
        listener.waiting("all VFs", 1060.0, pf=A)

        text = b""
        while not text.endswith(b"waiti\r\n"):
            text += shown.read(4096)
    assert text.decode().splitlines()[-1] == "0000:17:00.0  -         waiti"


def set_size(descriptor: int, *, lines: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (MIG, "set-mig-mode"),
        (VFS_A, "enable-vfs"),
        (ResetGpu(A, ""), "reset-gpu"),
        (CreateGpuInstance(A, "", 19, "1g.18gb", Placement(0, 1)), "create-gpu-instance"),
    ],
)
def test_steps_have_a_word_for_machines(step: Step, word: str) -> None:
    assert step.action == word
