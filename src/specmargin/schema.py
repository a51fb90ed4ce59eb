"""What all our files share, as Pydantic sees them: unknown fields are refused, and complaints are one line."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

_LONGEST = 60  # characters of what was given


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def first_complaint(error: ValueError) -> str:
    """Pydantic's first complaint in one line: field, what is wrong, what was given."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # our own words, about a field or about the whole
        return f"{place}: {first['ctx']['error']}" if place else str(first["ctx"]["error"])
    place = place or "the file"
    given = repr(first["input"])
    shown = "" if first["type"] in ("missing", "extra_forbidden") or len(given) > _LONGEST else f", got {given}"
    return f"{place}: {first['msg'].lower()}{shown}"
