"""From a request to a command: every field is an option, in the panel that the request assigns.

    @command(app, PlanRequest)
    def plan(request: PlanRequest, json: JsonOption = False) -> None: ...

Options that are not given are not passed on, so that a request distinguishes them from defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from specmargin.answers.request_schema import Request, RequestOption, read_request, request_options

RequestKind = TypeVar("RequestKind", bound=Request)


def option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def command(app: typer.Typer, kind: type[RequestKind]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose options are the fields of `kind`, followed by its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        fields = {option.field: _parameter(option) for option in request_options(kind)}

        def run(**given: Any) -> None:
            request = read_given(kind, {name: given.pop(name) for name in fields})
            function(request, **given)

        # Keyword-only, so that options without a default may follow those with one.
        parameters = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in (*fields.values(), *own)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command()(run)
        return function

    return register


def read_given(kind: type[RequestKind], given: Mapping[str, Any]) -> RequestKind:
    """The request for the options given on the command line."""
    set_options = {name: value for name, value in given.items() if value is not None}
    arguments = {option.field for option in request_options(kind) if option.shown.argument}
    name = {field: field.upper() for field in arguments}
    return read_request(kind, set_options, option=lambda field: name.get(field) or option_name(field))


def _parameter(option: RequestOption) -> inspect.Parameter:
    """The parameter from which Typer makes the option."""
    shown = option.shown
    if shown.argument:
        info: Any = typer.Argument(metavar=shown.metavar or option.field.upper(), help=option.help)
    else:
        info = typer.Option(
            option_name(option.field),
            help=option.help,
            metavar=shown.metavar,
            show_default=option.default or False,
            rich_help_panel=shown.panel,
            hidden=option.unused,
        )
    # Numbers are parsed by the request, so that its messages are the same for options, files and Python.
    own: Any = str if option.kind in (int, float) else option.kind
    kind: Any = own if option.required else own | None
    default = inspect.Parameter.empty if option.required else None
    annotation = Annotated[kind, info]
    return inspect.Parameter(option.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
