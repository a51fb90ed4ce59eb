"""What `doctor` says of a recorded server (lab/live/pages.py): the readings and pages are those of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.live.doctor import ACCEPTANCE, ONE_CORE
from specmargin.live.engine_logs import log_settings
from specmargin.live.engine_metrics import EngineReading, engine_reading
from specmargin.live.observation import Observation
from specmargin.live.observe import observation
from specmargin.live.server import Server, UnreachableError
from specmargin.live.server_settings import read_settings
from specmargin.verbs.doctor.answer import DoctorAnswer
from specmargin.verbs.doctor.readings import answer_of
from specmargin.verbs.doctor.request_schema import DoctorRequest

_TIMES = ("_seconds_sum", "_seconds_total", "_latency_seconds")
_RATES = ("_tokens_seconds", "_throughput")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded(Server):
    """Its pages of settings; what was not recorded is not there."""

    pages: dict[str, Any]

    def text(self) -> str:
        path = self.url.removeprefix(self.base)
        if path not in self.pages:
            raise UnreachableError(f"{self.url}: not recorded")
        return json.dumps(self.pages[path])

    @property
    def base(self) -> str:
        return "http://recorded"


def read_recording(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def observed(recording: dict[str, Any], *, with_log: bool = False) -> Observation:
    """As `doctor URL` observes it, or `doctor URL --log FILE`."""
    readings = list(_readings(recording))
    server = _Recorded(url="http://recorded/metrics", pages=recording["pages"])
    settings = read_settings(server, readings[-1])
    if with_log:
        settings = settings.filled_from(log_settings(recording["log"], engine=readings[-1].engine))
    return observation(readings, settings)


def request_of(recording: dict[str, Any]) -> DoctorRequest:
    """What a user would say of the server that it does not say itself."""
    about = recording["about"]
    if about.get("gpu"):
        return DoctorRequest(model=about["model"], gpu=about["gpu"], drafter=about["drafter"])
    return DoctorRequest(
        model=str(ONE_CORE / "target"),
        gpu=str(ONE_CORE / "core.toml"),
        drafter=f"model:{ONE_CORE / 'draft'}",
        acceptance=",".join(map(str, ACCEPTANCE)),
        prices=str(ONE_CORE / "prices.json")
        if about["engine"] == "vllm"
        else "datasheet",  # a core has no kernels of a GPU
    )


def judged(recording: dict[str, Any], request: DoctorRequest, *, with_log: bool = False) -> DoctorAnswer:
    return answer_of(request, observed(recording, with_log=with_log))


def without_server_info(recording: dict[str, Any]) -> dict[str, Any]:
    """As a server shows itself that was not started in vLLM's developer mode."""
    return recording | {"pages": {path: page for path, page in recording["pages"].items() if "server_info" not in path}}


def faster(recording: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same server on a machine on which everything takes so much less time."""
    readings = [
        {"at_seconds": taken["at_seconds"] / factor, "metrics": [_shorter(line, factor) for line in taken["metrics"]]}
        for taken in recording["readings"]
    ]
    return recording | {"readings": readings}


def _shorter(line: str, factor: float) -> str:
    name, value = line.rsplit(" ", 1)
    kind = name.split("{")[0]
    if kind.endswith(_RATES):
        factor = 1.0 / factor
    return f"{name} {float(value) / factor}" if kind.endswith((*_RATES, *_TIMES)) else line


def _readings(recording: dict[str, Any]) -> Iterator[EngineReading]:
    lines: dict[str, str] = {}
    for taken in recording["readings"]:
        lines |= {line.rsplit(" ", 1)[0]: line for line in taken["metrics"]}
        reading = engine_reading("\n".join(lines.values()) + "\n", taken["at_seconds"], "http://recorded/metrics")
        if reading is None:
            raise ValueError("no metrics of an engine in this recording")
        yield reading
