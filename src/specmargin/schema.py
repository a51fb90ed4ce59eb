"""What all our files share, as Pydantic sees them: unknown fields are refused, and complaints are one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

_LONGEST = 60  # characters of what was given
# Pydantic's kinds of complaint in our words; the rest keep Pydantic's.
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be below {lt:g}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a table of names and values",
    "model_type": "must be a table of names and values",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "too_long": "takes at most {max_length} values",
    "json_invalid": "is not valid JSON ({error})",
}
_WITHOUT_INPUT = ("missing", "extra_forbidden", "too_long", "json_invalid")


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def first_complaint(error: ValueError, *, name: Callable[[str], str] = str) -> str:
    """Pydantic's first complaint in one line: field, what is wrong, what was given. `name`: what a field is called."""
    if not isinstance(error, ValidationError):
        return str(error)
    return complaint(error.errors()[0], name=name)


def complaint(one: Mapping[str, Any], *, name: Callable[[str], str] = str) -> str:
    """One of Pydantic's complaints in one line."""
    where = ".".join((name(str(one["loc"][0])), *map(str, one["loc"][1:]))) if one["loc"] else ""
    if one["type"] == "value_error":  # our own words, about a field or about the whole
        said = str(one["ctx"]["error"]) if "ctx" in one else str(one["msg"]).removeprefix("Value error, ")
        return f"{where}: {said}" if where else said
    where = where or "the file"
    given = repr(one["input"])
    shown = "" if one["type"] in _WITHOUT_INPUT or len(given) > _LONGEST else f", got {given}"
    words = _WORDS.get(one["type"])
    if words is None:
        return f"{where}: {str(one['msg']).lower()}{shown}"
    return f"{where} {words.format(**one.get('ctx', {}))}{shown}"
