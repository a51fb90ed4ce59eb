"""Time kernels of a GPU without an engine and fit laws to them.

Fused experts over positions and distinct experts, dense products and the LM head, grouped attention with 1 to 16
queries per sequence, launches, copy bandwidth and matrix rate. Every kernel is first checked against float64. Rows are
written to FILE.rows.jsonl immediately: run the command again to resume.

Examples:

  specmargin measure gpu qwen3-30b-a3b --gpu h200 -o mine.json
  specmargin price qwen3-30b-a3b --gpu h200 --batch 8 --depth 3 --prices mine.json
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, Table, bold, left, warned
from specmargin.answers.outputs_schema import MeasurementOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.catalog.lookup import find_device, find_model
from specmargin.measure.gpu.shapes import Shapes, key_of, shapes_of
from specmargin.measure.records import Records

if TYPE_CHECKING:
    from specmargin.measure.gpu.laws import KernelReport

_ROWS = 230  # approximate records, for the progress bar


class MeasureGpuRequest(Request):
    model: Annotated[
        str,
        Field(min_length=1, description="Model whose shapes are timed: a name, a config.json or a folder."),
        Shown(argument=True),
    ] = "qwen3-30b-a3b"
    gpu: Annotated[
        str,
        Field(min_length=1, description="The device's name for --gpu, as in `specmargin gpus`."),
        Shown(metavar="GPU"),
    ] = "h200"
    repeats: Annotated[
        int, Field(ge=3, description="Timings per kernel, of which the median is used."), Shown(metavar="N")
    ] = 15
    minutes: Annotated[
        float, Field(ge=0.1, description="Time no further kernels after this long."), Shown(metavar="MINUTES")
    ] = 5.0
    fit_only: Annotated[bool, Field(description="Time nothing: fit the rows measured so far.")] = False


# --- verb ---


@verb(MeasureGpuRequest, outputs=MeasurementOutputs)
def measure_gpu(
    request: MeasureGpuRequest, *, outputs: MeasurementOutputs, progress: Progress = silent
) -> MeasureGpuAnswer:
    name, shapes = find_device(request.gpu).name, shapes_of(find_model(request.model))
    records = Records(path=outputs.output.with_suffix(".rows.jsonl"))
    header = {"model": shapes.model, "gpu": name}
    records.check(header, fresh=outputs.force and not request.fit_only)
    if not request.fit_only:
        from specmargin.measure.gpu.bench import check_gpu

        check_gpu()
        records.begin(header, fresh=outputs.force)
        _time_kernels(shapes, records, request, progress)
    from specmargin.measure.gpu.laws import kernel_report

    report = kernel_report(list(records.read()), shapes, name)
    return MeasureGpuAnswer(request=request, report=report, output=outputs.output)


def _time_kernels(shapes: Shapes, records: Records, request: MeasureGpuRequest, progress: Progress) -> None:
    from specmargin.measure.gpu.bench import Bench, everything

    done = frozenset(key_of(row) for row in records.read() if row.get("record") == "row")
    bench = Bench(repeats=request.repeats, deadline=time.time() + 60.0 * request.minutes, done=done)
    with records.interruptible(), progress("kernels", _ROWS) as advance:
        for record in everything(bench, shapes):
            records.append(record)
            advance(1)


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasureGpuAnswer(Answer[MeasureGpuRequest]):
    report: KernelReport
    output: Path

    schema: ClassVar[str] = "specmargin.measure-gpu/1"

    @property
    def verdict(self) -> str:
        return str(self.report.file["source"])

    def values(self) -> dict[str, Any]:
        report = self.report
        return {
            "source": report.file["source"],
            "laws": report.file["laws"],
            "copy_bytes_per_second": report.bytes_per_second,
            "operations_per_second": report.operations_per_second,
            "launch_seconds": {"graph": report.launch_seconds[True], "no_graph": report.launch_seconds[False]},
            "unsteady": report.unsteady,
            "failures": report.failures,
        }

    def file_text(self) -> str:
        from specmargin.prices.measured_schema import rows_by_line

        return rows_by_line(self.report.file)

    def blocks(self) -> Iterator[Block]:
        report, launches = self.report, self.report.launch_seconds
        yield bold(self.verdict)
        yield Line(
            f"copy {report.bytes_per_second / 1e12:.2f} TB/s, matrices {report.operations_per_second / 1e12:.0f} "
            f"TFLOP/s, {launches[True] * 1e6:.1f} µs per launch inside a graph and {launches[False] * 1e6:.1f} µs "
            "without"
        )
        yield Table(
            title="Laws", columns=left("operation", "law", "held out"), rows=[_law(law) for law in report.file["laws"]]
        )
        if report.unsteady:
            few = "; ".join(report.unsteady[:3])
            yield from warned([f"{len(report.unsteady)} timings vary by more than 10%: {few}"])
        yield from warned(report.failures)
        yield Line(f"Wrote {self.output}; use it with --prices {self.output}")


def _law(law: dict[str, Any]) -> list[str]:
    reads = f"{law['fixed_seconds'] * 1e6:.1f} µs + bytes at {law['bytes_per_second'] / 1e12:.2f} TB/s"
    errors = f"{law['evidence']['median_error']:.1%}, p90 {law['evidence']['p90_error']:.0%}"
    return [law["operation"], f"{reads}, {law['operations_per_second'] / 1e12:.0f} TFLOP/s", errors]
