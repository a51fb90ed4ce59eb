"""A diagnosis as JSON with stable keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from specmargin.verbs.doctor.diagnosis import Diagnosis
from specmargin.verbs.doctor.finding import Case, Finding


def values_of(case: Case, diagnosis: Diagnosis, missing: tuple[str, ...]) -> dict[str, Any]:
    of, expected = case.of, case.expected
    return {
        "source": of.source,
        "engine": of.engine,
        "seconds": of.seconds,
        "status": str(diagnosis.status),
        "cause": diagnosis.findings[0].id if diagnosis.findings else None,
        "model": None if expected is None else expected.scenario.architecture.name,
        "gpu": None if expected is None else expected.scenario.device.name,
        "gpus": None if expected is None else expected.scenario.layout.gpus,
        "drafter": None if expected is None else expected.scenario.drafter.name,
        "findings": [_finding(each) for each in diagnosis.findings],
        "differences": list(diagnosis.differences),
        "not_excluded": [asdict(each) for each in diagnosis.not_excluded],
        "not_shown": list(of.not_shown),
        "missing": list(missing),
        "observation": asdict(of),
    }


def _finding(of: Finding) -> dict[str, Any]:
    return {
        "id": of.id,
        "title": of.title,
        "evidence": list(of.evidence),
        "gain": of.gain,
        "loss": of.loss,
        "fix": of.fix,
    }
