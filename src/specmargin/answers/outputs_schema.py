"""Where an answer goes: options of the command line that are not part of the question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specmargin.answers.request_schema import Request, Shown
from specmargin.errors import InputError
from specmargin.files import check_new, check_table

OUTPUT = Shown(panel="Output")
FILE = OUTPUT.as_("FILE")
ForceField = Annotated[bool, Field(description="Overwrite files that exist."), OUTPUT]


class Outputs(Request):
    """What every verb takes."""

    force: ForceField = False
    as_json: Annotated[
        bool, Field(description="Machine-readable output (versioned schema)."), OUTPUT.named("--json")
    ] = False

    @property
    def overwrites(self) -> bool:
        return self.force

    def check(self) -> None:
        """Whether every file can be written, before any work is done."""
        for path in self._paths():
            check_new(path, force=self.force)

    def _paths(self) -> list[Path]:
        return [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Path)]


class TableOutputs(Outputs):
    """Of an answer with a table."""

    output: Annotated[
        Path | None, Field(description="Write the table to FILE.csv or FILE.parquet."), FILE.named("--output", "-o")
    ] = None

    def check(self) -> None:
        if self.output is not None:
            check_table(self.output, force=self.force)
        super().check()


class PlotOutputs(Outputs):
    """Of an answer with a chart."""

    plot: Annotated[Path | None, Field(description="Draw a chart: FILE.png, .svg, .html or .json."), FILE] = None

    def check(self) -> None:
        if self.plot is not None:
            from specmargin.show.figures.files import check_target  # noqa: PLC0415 (an extra)

            check_target(self.plot, force=self.force)
        super().check()


class ChartOutputs(TableOutputs, PlotOutputs):
    """Of an answer with a table and a chart."""


class FileOutputs(Outputs):
    """Of an answer that is a file of its own."""

    output: Annotated[Path | None, Field(description="Where to write the file."), FILE.named("--output", "-o")] = None

    def stem(self, ending: str) -> str | None:
        """The name of the file without its ending: the name of what is in it."""
        return None if self.output is None else self.output.name.removesuffix(ending)


class MeasurementOutputs(FileOutputs):
    """Of a measurement, which goes on where an earlier one ended."""

    output: Annotated[
        Path, Field(description="Where to write the prices, FILE.json, for --prices."), FILE.named("--output", "-o")
    ]
    force: Annotated[bool, Field(description="Discard an earlier measurement and start again."), OUTPUT] = False


class ContinuedOutputs(MeasurementOutputs):
    """Of a measurement that also goes on after its prices were written: they are fitted again."""

    @property
    def overwrites(self) -> bool:
        return True  # `check` has refused what is not its own

    def _paths(self) -> list[Path]:
        going_on = self.output.with_suffix(".rows.jsonl").exists()
        return [path for path in super()._paths() if not (going_on and path == self.output)]


class ListOutputs(Outputs):
    """Of a verb that lists entries, or prints one as a file."""

    output: Annotated[
        Path | None,
        Field(description="Write the table to FILE.csv or FILE.parquet, with --template the entry to FILE."),
        FILE.named("--output", "-o"),
    ] = None

    def check_text(self, ending: str) -> None:
        """Whether a text file with this ending can be written."""
        if self.as_json:
            raise InputError("--json: the answer is a file by itself; leave --json out")
        if self.output is not None and self.output.suffix != ending:
            raise InputError(f"{self.output}: this file must end in {ending}")

    def check_list(self) -> None:
        if self.output is not None:
            check_table(self.output, force=self.force)
