"""`specmargin`: the command line. A verb is imported only when it is called, so that --help stays fast."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from specmargin._version import __version__
from specmargin.errors import InputError, nearest_names, needs_extra
from specmargin.verbs import find_verb, split_verb, summary, verb_names

# Matrices are small, and on a busy machine BLAS threads wait for each other: a plan takes 2.5 s instead of 0.6 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_COMPLETION = "_SPECMARGIN_COMPLETE"  # set by the shell, as Typer's script does
#: Lists that may be given as nothing; any other empty value is a variable that a script forgot to set.
_MAY_BE_EMPTY = ("--depths", "--long-batches")


def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Prices speculative decoding on mixture-of-experts models, and decides from the price."""
    if version:
        typer.echo(f"specmargin {__version__}")
        raise typer.Exit


def _application(typed: str = "") -> typer.Typer:
    """All verbs with their summaries. Only the verb that was typed has its options, for a shell that completes them."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,  # plain text: Rich takes longer to import than the rest of a help page
        epilog="Start with: specmargin plan qwen3.6-35b-a3b --gpu h200",
    )
    app.callback(invoke_without_command=True)(_root)
    parts = {name.partition(" ")[0]: typer.Typer() for name in verb_names() if " " in name}
    for name in verb_names():
        first, _, second = name.partition(" ")
        if second and typed:
            parts[first].command(second, short_help=summary(name))(_body(name, typed))
        else:
            app.command(name, short_help=summary(name))(_body(name, typed))
    for first, part in parts.items() if typed else ():
        if first not in verb_names():
            app.add_typer(part, name=first)
    return app


def _body(name: str, typed: str) -> Callable[..., None]:
    if name != typed:
        return lambda: None
    from specmargin.cli.verbs import command

    return command(find_verb(name)).registered_commands[0].callback or (lambda: None)


def run(verb: str, arguments: list[str]) -> int:
    """Run a verb; a word that only begins one (`profile`) prints those that it begins."""
    _refuse_empty(verb, arguments)
    name, rest = split_verb([verb, *arguments])
    from specmargin.cli.verbs import ALL_HELP, command, group

    app = command(find_verb(name), whole_page=ALL_HELP in rest) if name else group(verb)
    rest = ["--help"] if ALL_HELP in rest else rest
    return _call(app, rest if name else arguments or ["--help"], f"specmargin {name or verb}")


def _refuse_empty(verb: str, arguments: list[str]) -> None:
    for before, value in zip(["", *arguments], arguments, strict=False):
        name, equals, given = value.partition("=")
        option = name if equals and not given else before if not value else ""
        if option.startswith("-") and option not in _MAY_BE_EMPTY:
            raise InputError(f"{option} has an empty value; give one or leave it out (`specmargin {verb} --help`)")


def _call(app: typer.Typer, arguments: list[str], name: str) -> int:
    command = typer.main.get_command(app)
    return int(command.main(args=arguments, prog_name=name, standalone_mode=False) or 0)


def main() -> None:
    """Entry point. Invalid input ends in one sentence and exit code 2, never in a traceback."""
    if sys.stdout is None:  # started with standard output closed
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without × prints a question mark instead of failing
    arguments = sys.argv[1:]
    try:
        with needs_extra():
            code = _dispatch(arguments)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # the reader of a pipe closed it (`| head`)
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise  # Rich and the option parser turn a closed pipe into an exit with code 1
        code = 0
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 (nothing is left to flush into)
    except Exception as error:
        code = _complain(error, arguments)
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    if _COMPLETION in os.environ:
        typed, _ = split_verb(os.environ.get("COMP_WORDS", "").split()[1:])
        return _call(_application(typed or "none"), [], "specmargin")
    arguments = arguments or ["--help"]
    if arguments[0] in _first_words():
        return run(arguments[0], arguments[1:])
    if not arguments[0].startswith("-"):
        near = nearest_names(arguments[0], _first_words())
        raise InputError(f"no verb {arguments[0]!r}{near}; `specmargin --help` lists them")
    return _call(_application(), arguments, "specmargin")


def _first_words() -> list[str]:
    return list(dict.fromkeys(name.partition(" ")[0] for name in verb_names()))


#: The option parser's words, and Specmargin's (`schema.py` has those for requests and files).
_WORDS = (
    (r"^Invalid value for '([^']*)': ", r"\1: "),
    (r": Input should be a valid integer.*", " must be a whole number"),
    (r": Input should be a valid number.*", " must be a number"),
    (r": Input should be greater than or equal to ", " must be at least "),
    (r": Input should be less than or equal to ", " must be at most "),
    (r": Value error, ", ": "),
)


def _plain(message: str) -> str:
    text = " ".join(message.rstrip(".").split())
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


def _complain(error: Exception, arguments: list[str]) -> int:
    """Print one sentence to standard error. Anything but an input or output error is reported as a bug."""
    if os.environ.get("SPECMARGIN_DEBUG"):
        raise error
    if isinstance(error, InputError):
        message, code = str(error), 2
    elif hasattr(error, "format_message"):  # a usage error of the option parser
        verb = split_verb(arguments)[0] or next((word for word in arguments[:1] if word in _first_words()), "")
        said = _plain(error.format_message())
        page = "--help-all" if verb and said.startswith("No such option") else "--help"  # the short page lacks many
        message, code = f"{said}; see `specmargin {f'{verb} ' if verb else ''}{page}`", 2
    elif isinstance(error, OSError):
        what = f"{error.filename}: cannot be read or written" if error.filename else "cannot write the output"
        message, code = f"{what} ({(error.strerror or str(error)).lower()})", 1
    else:
        message = f"this is a bug ({type(error).__name__}: {error}); run again with SPECMARGIN_DEBUG=1 and report it"
        code = 70
    with contextlib.suppress(OSError, ValueError):
        print(f"specmargin: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
