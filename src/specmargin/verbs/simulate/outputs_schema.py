"""Where the answer of `simulate` goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specmargin.answers.outputs_schema import FILE, ChartOutputs
from specmargin.files import check_table


class SimulateOutputs(ChartOutputs):
    save_requests: Annotated[
        Path | None, Field(description="Write all requests to FILE.parquet or FILE.csv (one policy only)."), FILE
    ] = None
    save_steps: Annotated[
        Path | None, Field(description="Write all steps to FILE.parquet or FILE.csv (one policy only)."), FILE
    ] = None
    plot: Annotated[
        Path | None,
        Field(
            description="Draw depth and load over time, or several policies side by side: FILE.png, .svg, .html or "
            ".json."
        ),
        FILE,
    ] = None

    def check(self) -> None:
        super().check()
        for path in (self.save_requests, self.save_steps):
            if path is not None:
                check_table(path, force=self.force)
