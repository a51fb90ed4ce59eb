"""The command of a verb: every field of its request and of its outputs is an option; the answer is shown or written."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand

from specmargin.answers.options_schema import RequestOption, request_options
from specmargin.answers.request_schema import LOAD, QUESTION, Request, ScenarioRequest, read_request
from specmargin.answers.verb import Verb
from specmargin.catalog.user import missing_folders
from specmargin.verbs import summary, verb_names

RequestKind = TypeVar("RequestKind", bound=Request)
FIRST_PANELS = tuple(str(shown.panel) for shown in (QUESTION, LOAD))  # of a help page
_PAGE_COLUMNS = 100  # of a help page in a wide terminal
_MANY_OPTIONS = 20
ALL_HELP = "--help-all"


class VerbCommand(TyperCommand):
    """Its help page is plain text with a section per panel: one that Rich draws takes three times as long."""

    often: ClassVar[frozenset[str]] = frozenset()  # parameters of a short page; none: all of them

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *FIRST_PANELS)}
        parameters = self.get_params(ctx)
        for param in parameters:
            record = param.get_help_record(ctx)
            if record is not None and (not self.often or param.name in self.often):
                default = "Arguments" if param.param_type_name == "argument" else "Help"
                sections.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
        if self.often:
            sections["Help"].append((ALL_HELP, f"Show all {len(parameters)} options, and exit."))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command(verb: Verb[Any, Any], *, whole_page: bool = False) -> typer.Typer:
    """A Typer application of one command. `whole_page`: help with all options of a verb that has many."""
    options = [*request_options(verb.request), *request_options(verb.outputs)]

    def run(**given: Any) -> None:
        from specmargin.show import terminal  # Rich, which a help page does not need

        for text in missing_folders():
            print(f"specmargin: warning: {text}", file=sys.stderr)
        request, outputs = _read(verb.request, given), _read(verb.outputs, given)
        outputs.check()
        with nullcontext() if verb.waiting is None else terminal.waiting(verb.waiting):
            answer = verb(request, outputs=outputs, progress=terminal.progress, bars=terminal.bars)
        code = terminal.show_answer(answer, outputs)
        if code:
            raise typer.Exit(code)

    # Keyword-only, so that options without a default may follow those with one.
    parameters = [_parameter(option) for option in options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    page = {"max_content_width": _PAGE_COLUMNS}
    often = frozenset() if whole_page else _often(options)
    page_of = type("ShortCommand", (VerbCommand,), {"often": often})
    app.command(cls=page_of, help=_page(verb.help), context_settings=page)(run)
    return app


def _often(options: list[RequestOption]) -> frozenset[str]:
    """The parameters of a short help page; none where all options fit on one.

    Of a verb whose own fields are not marked, all of them are on it.
    """
    own = [option for option in options if option.field not in ScenarioRequest.model_fields and not option.unused]
    if len(options) < _MANY_OPTIONS:
        return frozenset()
    chosen = {option.field for option in options if option.shown.often or option.shown.argument}
    if not any(option.shown.often for option in own):
        chosen |= {option.field for option in own}
    return frozenset((*chosen, "help"))


def group(verb: str) -> typer.Typer:
    """The page that lists the verbs of two words that begin with this one; `split_verb` finds the verb itself."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    for name in verb_names():
        first, _, part = name.partition(" ")
        if first == verb:
            app.command(part, help=summary(name))(lambda: None)
    return app


def _page(text: str) -> str:
    """Paragraphs are wrapped to the terminal; lines of an indented block are kept as they are."""
    blocks = text.split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith("  ") else part.replace("\n", " ") for part in blocks)


def _read(kind: type[RequestKind], given: Mapping[str, Any]) -> RequestKind:
    """The request for the options that were given; what was not given is a default."""
    name = {option.field: option.name for option in request_options(kind)}
    values = {field: given[field] for field in name if given[field] is not None}
    return read_request(kind, values, option=lambda field: name.get(field, field))


def _parameter(option: RequestOption) -> inspect.Parameter:
    """The parameter from which Typer makes the option."""
    shown = option.shown
    if shown.argument:
        info: Any = typer.Argument(
            metavar=shown.metavar or option.field.upper(),
            help=option.help,
            autocompletion=shown.names,
            show_default=False,
        )
    else:
        info = typer.Option(
            *option.options,
            help=f"{option.help}  [default: {option.default}]" if option.default else option.help,
            metavar=shown.metavar,
            show_default=False,
            rich_help_panel=shown.panel,
            hidden=option.unused,
            autocompletion=shown.names,
        )
    # Numbers and paths are parsed by the request, so that its messages are the same for options, files and Python.
    own: Any = list[str] if option.many else str if option.kind in (int, float, Path) else option.kind
    kind: Any = own if option.required else own | None
    default = inspect.Parameter.empty if option.required else None
    annotation = Annotated[kind, info]
    return inspect.Parameter(option.field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
