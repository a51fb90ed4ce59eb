"""Measuring: records survive an interruption, and failures are told."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from specmargin.errors import InputError
from specmargin.measure.points import (
    plain_run,
)
from specmargin.measure.records import Records
from specmargin.measure.steps import Order, measure_steps
from tests.unit.measured_rows import SURFACE, measured_row


def test_a_measurement_resumes_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.begin({"model": "m"}, fresh=False)
    plain = plain_run(SURFACE)
    records.append(measured_row("none", plain.points[0], 1e-3))
    with records.path.open("a") as file:
        file.write('{"record": "row", "run": "no')
    records.begin({"model": "m"}, fresh=False)
    assert records.missing(plain) == plain.points[1:]
    records.append(measured_row("none", plain.points[1], 1e-3))  # not glued to the line that was cut
    assert records.missing(plain) == plain.points[2:]
    with pytest.raises(InputError, match="another model"):
        records.begin({"model": "other"}, fresh=False)
    with pytest.raises(InputError, match="another model"):
        records.begin({}, fresh=False)


def test_other_flags_take_over_where_nothing_was_measured(tmp_path: Path) -> None:
    """An engine that could not start leaves only its failure: the same command with a flag that fixes it continues."""
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.begin({"engine_args": {}}, fresh=False)
    records.append({"record": "failure", "run": "none", "error": "ended by SIGILL", "final": False})
    records.begin({"engine_args": {"dtype": "float32"}}, fresh=False)
    assert list(records.read()) == [{"record": "measurement", "engine_args": {"dtype": "float32"}}]


def test_failures_are_forgotten_once_the_run_is_done(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.append({"record": "failure", "run": "pieces", "error": "out of GPU memory", "final": False})
    assert records.failures() == {"pieces": "out of GPU memory"}
    records.append({"record": "done", "run": "pieces"})
    assert records.failures() == {}


def test_an_engine_that_dies_leaves_its_rows_and_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is replaced by one that measures a point and dies, as an engine out of memory does."""
    fake = tmp_path / "specmargin_fake.py"
    fake.write_text(
        "import json, sys\n"
        "job = json.load(open(sys.argv[-1]))\n"
        "row = dict(job['points'][0], record='row', run=job['name'], prompt=job['points'][0]['context'], seconds=1.0)\n"
        "open(job['out'], 'a').write(json.dumps(row) + '\\n')\n"
        "sys.exit(9)\n"
    )
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", f"exec(open({str(fake)!r}).read())"])
    records = Records(path=tmp_path / "x.rows.jsonl")
    order = Order(model="m", surface=SURFACE, engine_args={})
    with pytest.raises(InputError, match="ended with exit code 9"):
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=lambda *_: None)
    assert len(records.missing(plain_run(SURFACE))) == len(plain_run(SURFACE).points) - 1
    assert "none" in records.failures()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGILL, "ended by SIGILL: the CPU lacks instructions .* usually bf16; pass --set dtype=float32"),
        (signal.SIGKILL, "ended by SIGKILL: the system most likely ran out of memory"),
        (signal.SIGSEGV, r"ended by SIGSEGV \(run 'none', output in .*log\)"),
    ],
)
def test_an_engine_that_a_signal_ends_names_it_with_its_likely_cause(
    number: signal.Signals, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier run failed for another reason, which the records still hold."""
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", program])
    records = Records(path=tmp_path / "x.rows.jsonl")
    records.append({"record": "failure", "run": "none", "error": "stopped: the time limit was reached", "final": False})
    order = Order(model="m", surface=SURFACE, engine_args={})
    with pytest.raises(InputError, match=message):
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=lambda *_: None)
    assert number.name in records.failures()["none"]


def test_an_interruption_keeps_the_rows_and_ends_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specmargin.measure.steps.find_spec", lambda _: object())
    started = tmp_path / "pid"
    engine = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr("specmargin.measure.steps.PROBE", ["-c", engine])

    def interrupt(_: str, __: int, ___: int) -> None:
        if started.exists() and started.read_text():
            raise KeyboardInterrupt

    records = Records(path=tmp_path / "x.rows.jsonl")
    with pytest.raises(InputError, match="interrupted; 0 rows are saved"), records.interruptible():
        order = Order(model="m", surface=SURFACE, engine_args={})
        measure_steps(order, records, deadline=time.time() + 60, log=tmp_path / "log", watch=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_nothing_is_started_after_the_deadline(tmp_path: Path) -> None:
    records = Records(path=tmp_path / "x.rows.jsonl")
    order = Order(model="m", surface=SURFACE, engine_args={})
    measure_steps(order, records, deadline=time.time() - 1, log=tmp_path / "log", watch=lambda *_: None)
    assert records.rows() == []
