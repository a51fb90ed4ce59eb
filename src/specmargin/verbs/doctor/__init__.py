"""Why is my server slow? Name the cause, its evidence, what it costs and what fixes it.

Reads a running server (vLLM, SGLang, TensorRT-LLM, llama.cpp; no plug-in needed) twice, some seconds apart, or lines of
its log, and compares them with what the plan expects of this model on this GPU. --model and --gpu name what the server
does not say of itself. What metrics cannot show is listed as not excluded, and never named as the cause.

The exit code is 0 whatever is found; it is not 0 only if nothing could be read.

Examples:

  specmargin doctor http://localhost:8000 --gpu h200

  specmargin doctor --log vllm.log --model Qwen/Qwen3-30B-A3B --gpu h100

  specmargin doctor --model qwen3-30b-a3b --gpu h200 < pasted-lines
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block
from specmargin.answers.verb import Progress, silent, verb
from specmargin.verbs.doctor.request_schema import DoctorOutputs, DoctorRequest

if TYPE_CHECKING:
    from specmargin.decisions.scenario import Scenario
    from specmargin.verbs.doctor.diagnosis import Diagnosis
    from specmargin.verbs.doctor.finding import Case, Finding


@verb(DoctorRequest, outputs=DoctorOutputs)
def doctor(request: DoctorRequest, *, progress: Progress = silent) -> DoctorAnswer | Iterator[DoctorAnswer]:
    from specmargin.verbs.doctor.readings import answers

    each = answers(request, progress)
    return each if request.watch else next(each)


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
        from specmargin.verbs.doctor.text import verdict

        return verdict(self.case, self.diagnosis, self.missing)

    @property
    def rows(self) -> Sequence[Any]:
        return self.findings

    def table(self) -> list[dict[str, Any]]:
        """One row per figure: seen, expected, and its range."""
        from specmargin.verbs.doctor.figures import figures

        return [figure.values() for figure in figures(self.case)]

    def values(self) -> dict[str, Any]:
        from specmargin.verbs.doctor.values import values

        return values(self.case, self.diagnosis, self.missing) | {"verdict": self.verdict, "figures": self.table()}

    def blocks(self) -> Iterator[Block]:
        from specmargin.verbs.doctor.text import blocks

        return blocks(self.case, self.diagnosis, self.missing)
