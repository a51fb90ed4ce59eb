"""Fields of a request as options of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BeforeValidator

from specmargin.answers.request_schema import Request, Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOption:
    """A field of a request, as a command line shows it."""

    field: str
    kind: type  # int, float, bool, str or an enumeration; str for text that the request parses (64k, 1-8)
    help: str
    required: bool
    default: str | None  # None: none is shown
    shown: Shown
    unused: bool
    many: bool  # takes several values
    parsed: bool  # from text, into numbers

    @property
    def options(self) -> tuple[str, ...]:
        return self.shown.options or (f"--{self.field.replace('_', '-')}",)

    @property
    def name(self) -> str:
        """As messages call it."""
        return self.field.upper() if self.shown.argument else self.options[0]


def request_options(kind: type[Request]) -> Iterator[RequestOption]:
    for name, field in kind.model_fields.items():
        shown = next((entry for entry in field.metadata if isinstance(entry, Shown)), Shown())
        if shown.key:
            continue
        parsed = any(isinstance(entry, BeforeValidator) for entry in field.metadata)
        yield RequestOption(
            field=name,
            kind=str if parsed else _plain_type(field.annotation),
            help=field.description or "",
            required=field.is_required(),
            default=shown.default or _default_text(field.default, required=field.is_required()),
            shown=shown,
            unused=name in kind.unused,
            many=not parsed and _is_list(field.annotation),
            parsed=parsed,
        )


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is tuple for part in (annotation, *get_args(annotation)))


def _plain_type(annotation: Any) -> type:
    kind = next((part for part in get_args(annotation) if part is not NoneType), annotation)
    plain = isinstance(kind, type) and (kind in (int, float, bool, str, Path) or issubclass(kind, Enum))
    return kind if plain else str


def _default_text(default: Any, *, required: bool) -> str | None:
    if required or default is None or default is False or default == ():
        return None
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
