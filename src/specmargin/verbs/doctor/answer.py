"""A diagnosis as the terminal, JSON, tables and Python show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block
from specmargin.decisions.scenario import Scenario
from specmargin.verbs.doctor.diagnosis import Diagnosis
from specmargin.verbs.doctor.figures import figures
from specmargin.verbs.doctor.finding import Case, Finding
from specmargin.verbs.doctor.request_schema import DoctorRequest
from specmargin.verbs.doctor.text import blocks_of, verdict_of
from specmargin.verbs.doctor.values import values_of


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorAnswer(Answer[DoctorRequest]):
    """`request` is as asked, with what the server says of itself filled in."""

    case: Case
    diagnosis: Diagnosis
    missing: tuple[str, ...]  # what could not be found out, in sentences

    schema: ClassVar[str] = "specmargin.doctor/1"

    @property
    def scenario(self) -> Scenario | None:
        return None if self.case.expected is None else self.case.expected.scenario

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.diagnosis.findings

    @property
    def verdict(self) -> str:
        return verdict_of(self.case, self.diagnosis, self.missing)

    @property
    def rows(self) -> Sequence[Any]:
        return self.findings

    def table(self) -> list[dict[str, Any]]:
        """One row per figure: seen, expected, and its range."""
        return [figure.values() for figure in figures(self.case)]

    def values(self) -> dict[str, Any]:
        values = values_of(self.case, self.diagnosis, self.missing)
        return values | {"verdict": self.verdict, "figures": self.table()}

    def blocks(self) -> Iterator[Block]:
        return blocks_of(self.case, self.diagnosis, self.missing)
