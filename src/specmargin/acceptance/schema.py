"""The file of an acceptance profile, `NAME.acceptance.json`: the summary of a bank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from specmargin.acceptance.survival import EIGHTY_PERCENT, Survival
from specmargin.errors import AcceptanceError, nearest_names
from specmargin.files import read_text
from specmargin.schema import StrictModel, first_complaint
from specmargin.sources import Source, SourceKind

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class CategoryFile(StrictModel):
    rounds: Annotated[int, Field(gt=0)]
    survival: list[Probability]
    survival_stderr: list[float]


class CalibratorFile(StrictModel):
    """Weights of the logistic calibrator, in the order of `calibration.Logistic`."""

    depths: Annotated[int, Field(gt=0)]
    weights: list[float]


class AcceptanceFile(StrictModel):
    schema_: Literal["specmargin.acceptance/1"] = Field(alias="schema")
    name: str
    speculator: str
    source: str
    categories: dict[str, CategoryFile]
    calibrator: CalibratorFile | None
    sample: list[list[Probability]]  # calibrated survivals of some rounds, for the look-ahead
    assumed: bool = False  # the curve's shape is: only its mean was measured

    def survival(self, category: str) -> Survival:
        profile = self.categories.get(category)
        if profile is None:
            hint, names = nearest_names(category, self.categories), ", ".join(self.categories)
            raise AcceptanceError(f"acceptance profile {self.name} has no category {category!r}{hint}; it has: {names}")
        origin = f"{self.speculator} ({self.source})" if self.speculator else self.source
        detail = f"{profile.rounds:,} rounds of {origin}, {category}"
        by_depth = np.minimum.accumulate(np.array(profile.survival))
        error = EIGHTY_PERCENT * profile.survival_stderr[0] if profile.survival_stderr else 0.0
        source = Source(kind=SourceKind.ASSUMED if self.assumed else SourceKind.MEASURED, detail=detail)
        return Survival(by_depth=by_depth, source=source, shift_range=(-error, error))


def read_acceptance(path: Path) -> AcceptanceFile:
    return parse_acceptance_file(read_text(path, AcceptanceError), str(path))


def parse_acceptance_file(text: str, origin: str) -> AcceptanceFile:
    try:
        return AcceptanceFile.model_validate_json(text)
    except ValidationError as error:
        fault = first_complaint(error)
        raise AcceptanceError(f"{origin}: {fault}; `specmargin profile acceptance` makes such files") from None


def as_text(file: AcceptanceFile) -> str:
    return json.dumps(file.model_dump(by_alias=True, exclude_defaults=True), ensure_ascii=False) + "\n"
