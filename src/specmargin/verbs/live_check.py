"""Does the plug-in run in this release of vLLM or SGLang? Which features, and what the others lack.

Reads the Python files of the engine in this environment (or in unpacked sources: --path) and looks for every part of it
that the plug-in overrides, calls, reads or writes. It imports no engine and starts no server. A release that was not
tested runs with every feature whose parts are all there; the plug-in makes the same check when a server starts.

The exit code is 0 if all features run, 1 if one is lost, 2 if there is no engine or its files cannot be read.

Examples:

  specmargin live-check

  specmargin live-check --path unpacked/vllm-0.33.0 --json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Line, Style, Table, bold, left, right
from specmargin.answers.outputs_schema import TableOutputs
from specmargin.answers.request_schema import QUESTION, Request
from specmargin.answers.verb import verb
from specmargin.errors import EngineError

if TYPE_CHECKING:
    from specmargin.live.parts import Feature, Problem, Report


class LiveCheckRequest(Request):
    path: Annotated[
        Path | None,
        Field(description="A folder of unpacked sources, instead of what is installed here."),
        QUESTION.as_("FOLDER"),
    ] = None
    engine: Annotated[
        Literal["vllm", "sglang"] | None,
        Field(description="Only this engine: vllm or sglang; by default each that is there."),
        QUESTION.as_("ENGINE"),
    ] = None


@verb(LiveCheckRequest, outputs=TableOutputs, name="live-check")
def live_check(request: LiveCheckRequest) -> LiveCheckAnswer:
    from specmargin.live.parts import ENGINES, check_sources, installed_folder, package_folder

    if request.path is not None and not request.path.is_dir():
        raise EngineError(f"--path {request.path}: there is no such folder")
    engines = ENGINES if request.engine is None else (request.engine,)
    reports = []
    for engine in engines:
        folder = installed_folder(engine) if request.path is None else package_folder(engine, request.path)
        if folder is not None:
            reports.append(check_sources(engine, folder))
    if not reports:
        raise EngineError(_nothing(request, engines))
    return LiveCheckAnswer(request=request, reports=tuple(reports))


def _nothing(request: LiveCheckRequest, engines: tuple[str, ...]) -> str:
    from specmargin.live.parts import parts_list

    names = " nor ".join(parts_list(engine).title for engine in engines)
    neither = f"neither {names} is" if len(engines) > 1 else f"{names} is not"
    if request.path is None:
        return f"{neither} installed in this environment; run this where your server runs, or give --path FOLDER"
    return f"--path {request.path}: {neither} in this folder; give the one that holds the package"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveCheckAnswer(Answer[LiveCheckRequest]):
    reports: tuple[Report, ...]

    schema: ClassVar[str] = "specmargin.live-check/1"

    @property
    def verdict(self) -> str:
        return " ".join(map(_verdict, self.reports))

    @property
    def exit_code(self) -> int:
        return int(any(report.lost for report in self.reports))

    def table(self) -> list[dict[str, Any]]:
        return [
            {"engine": report.listed.engine, "release": report.release, **_row(report, feature)}
            for report in self.reports
            for feature in report.listed.features
        ]

    def values(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "engines": [_values(report) for report in self.reports]}

    def blocks(self) -> Iterator[Block]:
        for number, report in enumerate(self.reports):
            if number:
                yield GAP
            yield bold(_verdict(report))
            yield from _details(report)


def _name(report: Report) -> str:
    tested = "tested" if report.is_tested else f"not tested; tested: {', '.join(report.listed.tested)}"
    return f"{report.listed.title} {report.release or 'of an unknown release'} ({tested})"


def _verdict(report: Report) -> str:
    if not report.lost:
        return f"{_name(report)}: every feature runs, {report.found}."
    return f"{_name(report)}: without {', '.join(feature.words for feature in report.lost)}; {report.found}."


def _row(report: Report, feature: Feature) -> dict[str, Any]:
    parts, problems = [part for part in report.parts_of(feature) if not part.optional], report.problems_of(feature)
    return {
        "feature": str(feature),
        "runs": report.has(feature),
        "parts": len(parts),
        "found": len(parts) - len(problems),
        "why": "" if report.has(feature) else report.why_lost(feature),
    }


def _values(report: Report) -> dict[str, Any]:
    features = [
        _row(report, feature) | {"missing": [str(problem) for problem in report.problems_of(feature)]}
        for feature in report.listed.features
    ]
    return {
        "engine": report.listed.engine,
        "release": report.release,
        "tested": report.is_tested,
        "tested_releases": list(report.listed.tested),
        "folder": str(report.folder),
        "features": features,
    }


def _details(report: Report) -> Iterator[Block]:
    rows = []
    for feature in report.listed.features:
        row = _row(report, feature)
        rows.append([feature.words, "yes" if row["runs"] else "no", f"{row['found']} of {row['parts']}"])
    yield Table(columns=[*left("feature", "runs"), *right("parts found")], rows=rows)
    for feature in report.lost:
        problems = report.problems_of(feature)
        for cause in _causes(problems):
            yield Line(f"{feature.words}: {cause}", Style.WARNING)
        if problems:
            yield Line(f"{feature.words}: {report.consequence(feature)}")


def _causes(problems: tuple[Problem, ...]) -> Iterator[str]:
    """One per missing module or class with all that it should have, and one per other part."""
    missing: dict[str, list[str]] = {}
    for problem in problems:
        _, _, cause = problem.why.partition(": ")
        if problem.why.startswith("is not there: "):
            missing.setdefault(cause, []).append(problem.part.title)
        else:
            yield str(problem)
    for cause, titles in missing.items():
        yield f"{cause} ({', '.join(titles)})"
