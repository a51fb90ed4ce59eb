"""A request as the command line that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum
from typing import Any

from specmargin.answers.options_schema import RequestOption, request_options
from specmargin.answers.request_schema import Request


def command_line(verb: str, request: Request) -> str:
    """`specmargin VERB MODEL --gpu h200 …`, with the options that differ from their defaults."""
    words = ["specmargin", verb]
    for option in request_options(type(request)):
        words += _words(option, request)
    return shlex.join(words)


def _words(option: RequestOption, request: Request) -> Iterator[str]:
    value, default = getattr(request, option.field), type(request).model_fields[option.field].default
    if option.shown.argument:
        yield str(value)
    elif option.field not in request.unused and value is not None and value != default:
        yield f"--{'no-' if value is False else ''}{option.field.replace('_', '-')}"
        if not isinstance(value, bool):
            yield _text(value)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value))
    return str(value.value) if isinstance(value, Enum) else str(value)
