"""The base of Specmargin's file schemas: unknown fields are refused, and errors are one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

_LONGEST_VALUE = 60  # characters of an invalid value that are still shown
# Messages by Pydantic's error type; other types keep Pydantic's own message.
_MESSAGES = {
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
    """Pydantic's first error in one line: field, what is wrong, the value. `name`: a field's name for the user."""
    if not isinstance(error, ValidationError):
        return str(error)
    return complaint(error.errors()[0], name=name)


def complaint(error: Mapping[str, Any], *, name: Callable[[str], str] = str) -> str:
    """One of Pydantic's errors in one line."""
    field = ".".join((name(str(error["loc"][0])), *map(str, error["loc"][1:]))) if error["loc"] else ""
    if error["type"] == "value_error":  # raised by a validator of a field or of the whole model
        message = str(error["ctx"]["error"]) if "ctx" in error else str(error["msg"]).removeprefix("Value error, ")
        return f"{field}: {message}" if field else message
    field = field or "the file"
    value = repr(error["input"])
    shown = "" if error["type"] in _WITHOUT_INPUT or len(value) > _LONGEST_VALUE else f", got {value}"
    message = _MESSAGES.get(error["type"], "")
    if not message:
        return f"{field}: {str(error['msg']).lower()}{shown}"
    return f"{field} {message.format(**error.get('ctx', {}))}{shown}"
