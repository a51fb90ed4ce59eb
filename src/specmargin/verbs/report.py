"""Write verdict, flags, explanation and all figures to one HTML file without scripts or network requests.

Example: specmargin report qwen3.6-35b-a3b --gpu h200 -o report.html
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, warned
from specmargin.answers.outputs_schema import FILE, Outputs
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import InputError
from specmargin.files import write_text
from specmargin.show.explorer.request_schema import PageRequest

if TYPE_CHECKING:
    from specmargin.decisions.scenario import Scenario
    from specmargin.show.explorer.view import View


class ReportOutputs(Outputs):
    output: Annotated[Path, Field(description="Where to write the page: FILE.html."), FILE.named("--output", "-o")]

    def check(self) -> None:
        if self.output.suffix != ".html":
            raise InputError(f"{self.output}: the name of a report must end in .html")
        super().check()


@verb(PageRequest, outputs=ReportOutputs)
def report(request: PageRequest, outputs: ReportOutputs | None = None, progress: Progress = silent) -> ReportAnswer:
    from specmargin.show.explorer.gallery import GALLERY
    from specmargin.show.explorer.report import Origin, page
    from specmargin.show.explorer.view import View

    gc.set_threshold(200_000)  # by default a tenth of the time: figures are many small objects, and none is garbage
    view = View(request=request)
    with progress("drawing", len(GALLERY)) as advance:
        text = page(view, Origin(made=datetime.now(UTC)), advance=lambda: advance(1))
    figures = [name for name in GALLERY if f'"{name}-' in text]
    path = None if outputs is None else outputs.output
    return ReportAnswer(request=request, view=view, text=text, figures=figures, path=path)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReportAnswer(Answer[PageRequest]):
    view: View
    text: str  # the page
    figures: list[str]
    path: Path | None

    schema: ClassVar[str] = "specmargin.report/1"

    @property
    def scenario(self) -> Scenario:
        return self.view.scenario

    @property
    def verdict(self) -> str:
        verdict: str = self.view.plan["verdict"]
        return verdict

    def values(self) -> dict[str, Any]:
        return {"output": str(self.path), "figures": self.figures, "plan": self.view.plan}

    def blocks(self) -> Iterator[Block]:
        yield Line(f"{self.path}: {self.verdict}")
        yield from warned(self._missing())

    def _missing(self) -> list[str]:
        """What an extra would add: figures that do not apply to the scenario are not missed."""
        from specmargin.show.explorer.gallery import GALLERY

        reasons = dict.fromkeys(entry.lacks(self.view) or "" for entry in GALLERY.values())
        return [reason for reason in reasons if "pip install" in reason]

    def written(self, outputs: Outputs) -> Self:
        if self.path is not None:
            write_text(self.path, self.text, force=outputs.force)
        return self
