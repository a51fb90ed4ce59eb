"""The base of Specmargin's file schemas: unknown fields are refused, and errors are one line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from specmargin.errors import nearest_names

_LONGEST_VALUE = 60  # characters of an invalid value that are still shown
# Messages by Pydantic's error type; other types keep Pydantic's own message.
_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "multiple_of": "must be a multiple of {multiple_of}",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "string_sub_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "takes at most {max_length} characters",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a table of names and values",
    "mapping_type": "must be a table of names and values",
    "model_type": "must be a table of names and values",
    "model_attributes_type": "must be a table of names and values",
    "invalid_key": "must be text",
    "none_required": "must be empty",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "too_long": "takes at most {max_length} values",
    "too_short": "needs at least {min_length} values",
    "json_invalid": "is not valid JSON ({error})",
}
_WITHOUT_INPUT = ("missing", "extra_forbidden", "string_too_short", "too_long", "too_short", "json_invalid")
_COMPARED = ("greater_than_equal", "greater_than", "less_than_equal", "less_than")  # numbers, also as typed text
_CONSTANTS = {None: "null", True: "true", False: "false"}  # as files write them


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def first_complaint(error: ValueError, *, name: Callable[[str], str] = str, known: Collection[str] = ()) -> str:
    """Pydantic's first error in one line: field, what is wrong, the value. `name`: a field's name for the user.

    Of a model with these `known` fields, an unknown one comes first: it may be what is missing, by another name.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    entries = error.errors()
    unknown = next((entry for entry in entries if entry["type"] == "extra_forbidden" and len(entry["loc"]) == 1), None)
    if not known or unknown is None:
        return complaint(entries[0], name=name)
    return complaint(unknown, name=name) + nearest_names(str(unknown["loc"][0]), known)


def complaint(error: Mapping[str, Any], *, name: Callable[[str], str] = str) -> str:
    """One of Pydantic's errors in one line."""
    field = _field(error["loc"], name)
    if error["type"] == "value_error":  # raised by a validator of a field or of the whole model
        message = str(error["ctx"]["error"]) if "ctx" in error else str(error["msg"]).removeprefix("Value error, ")
        return f"{field}: {message}" if field else message
    field = field or "the file"
    value = error["input"]
    bare = isinstance(value, str) and error["type"] in _COMPARED
    shown = "" if error["type"] in _WITHOUT_INPUT else f", got {value}" if bare else _shown(value)
    message = _MESSAGES.get(error["type"], "is not valid")
    context = {key: _number(value) for key, value in error.get("ctx", {}).items()}
    return f"{field} {message.format(**context)}{shown}"


def _field(location: Sequence[str | int], name: Callable[[str], str]) -> str:
    """`workload.categories.0.weight`. Pydantic calls a wrong key of a table `[key]`: the key itself is named."""
    parts = [str(part) for part in location if part != "[key]"]
    return ".".join((name(parts[0]), *parts[1:])) if parts else ""


def _number(value: Any) -> Any:
    """A limit as people write it: 65,536 and not 65536.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 1e15:
        return value
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _shown(value: Any) -> str:
    text = _CONSTANTS[value] if value is None or isinstance(value, bool) else repr(value).removesuffix(".0")
    return f", got {text}" if len(text) <= _LONGEST_VALUE else ""
