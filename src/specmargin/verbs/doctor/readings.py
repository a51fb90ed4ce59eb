"""The server or the log that was asked about, read and diagnosed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from specmargin.answers.verb import Progress
from specmargin.errors import EngineError
from specmargin.live.engine_logs import log_lines, log_settings, observe_log
from specmargin.live.observation import Observation, ServerSettings
from specmargin.live.observe import IdleError, observe_server
from specmargin.verbs.doctor.answer import DoctorAnswer
from specmargin.verbs.doctor.diagnosis import diagnose
from specmargin.verbs.doctor.expected import expect
from specmargin.verbs.doctor.finding import Case
from specmargin.verbs.doctor.machine import Machine, read_machine
from specmargin.verbs.doctor.request_schema import DoctorRequest
from specmargin.verbs.doctor.seen import Seen
from specmargin.verbs.doctor.served import served

_STANDARD_INPUT = Path("-")


def answers(request: DoctorRequest, progress: Progress) -> Iterator[DoctorAnswer]:
    """One, or one after the other of a server that is watched."""
    if not request.url:
        yield answer_of(request, _of_log(request))
        return
    settings = _settings(request)
    while True:
        try:
            of = observe_server(request.url, seconds=request.seconds, progress=progress)
        except IdleError:
            if not request.watch:
                raise
            continue
        machine = read_machine(request.url)
        yield answer_of(request, replace(of, settings=of.settings.filled_from(settings)), machine)
        if not request.watch:
            return


def answer_of(request: DoctorRequest, of: Observation, machine: Machine | None = None) -> DoctorAnswer:
    seen = Seen(observation=of)
    known = served(request, seen)
    case = Case(seen=seen, expected=expect(seen, known), machine=machine)
    return DoctorAnswer(request=known.request, case=case, diagnosis=diagnose(case), missing=known.missing)


def _of_log(request: DoctorRequest) -> Observation:
    return observe_log(_lines(request), source=_source(request), engine=request.engine)


def _lines(request: DoctorRequest) -> Iterable[str]:
    if request.log is not None and request.log != _STANDARD_INPUT:
        return log_lines(request.log)
    if sys.stdin is None or sys.stdin.isatty():
        raise EngineError(
            "give the address of a server (http://localhost:8000), --log FILE, or lines of a log on standard input"
        )
    return sys.stdin


def _source(request: DoctorRequest) -> str:
    return "standard input" if request.log in (None, _STANDARD_INPUT) else str(request.log)


def _settings(request: DoctorRequest) -> ServerSettings:
    """What the server's log says of its settings, where both are given."""
    return ServerSettings() if request.log is None else log_settings(_lines(request))
