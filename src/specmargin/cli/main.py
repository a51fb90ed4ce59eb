"""`specmargin`: one module per verb, imported only when it is called, so that --help stays fast."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from specmargin._version import __version__
from specmargin.errors import InputError, nearest_names
from specmargin.verbs import find_verb, verb_names

# Matrices are small, and on a busy machine BLAS threads wait for each other: a plan takes 2.5 s instead of 0.6 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Help line per verb, which is implemented by the module of the same name in this package.
VERBS = {
    "plan": "Whether speculation pays, the draft depth per batch size, and the engine configuration.",
    "price": "The cost of one step: seconds, bytes and FLOPs by component.",
    "coverage": "Distinct experts by number of positions.",
    "duel": "Compare one more sequence with one more draft token.",
    "profile": "Build profiles from captures: routed experts (routing), draft rounds and policies (acceptance).",
    "design": "Which experts suit speculation at a target batch: number, width and share of shared experts.",
    "simulate": "Simulate an engine that serves a workload under a policy: latency, goodput, tokens and time.",
    "sweep": "Simulate a grid of models, GPUs, policies and loads on all cores or a Ray cluster; resumable.",
    "watch": "Monitor a running vLLM with the plug-in in the terminal, or write a Grafana dashboard.",
    "measure": "Measure prices on your own machine: engine steps (vllm) or GPU kernels (gpu).",
    "validate": "Compare your own measurements with predictions.",
    "explore": "Open the web page: move the controls and see where speculation pays.",
    "report": "Write verdict, explanation and figures to one HTML file.",
    "site": "Write the page as a static site for chosen models, GPUs and engines.",
    "models": "List the bundled models.",
    "gpus": "List the bundled devices.",
}

root = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Prices speculative decoding on mixture-of-experts models, and decides from the price.",
    epilog="Start with: specmargin plan qwen3.6-35b-a3b --gpu h200",
)


@root.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    completion: Annotated[
        str | None,
        typer.Option(
            "--completion",
            metavar="SHELL",
            help='Print the completion script for bash, zsh or fish: eval "$(specmargin --completion bash)".',
        ),
    ] = None,
) -> None:
    if completion is not None:
        from specmargin.cli.completion import script

        typer.echo(script(completion))
        raise typer.Exit
    if version:
        typer.echo(f"specmargin {__version__}")
        raise typer.Exit


def _placeholder(verb: str) -> Callable[[], None]:
    """Placeholder that lists a verb in `specmargin --help`; `_dispatch` runs the verb itself."""

    def show() -> None:
        raise typer.Exit(run(verb, ["--help"]))

    return show


for _verb, _help in VERBS.items():
    root.command(_verb, help=_help)(_placeholder(_verb))


#: Lists that may be given as nothing; any other empty value is a variable that a script forgot to set.
_MAY_BE_EMPTY = ("--depths", "--long-batches")


def run(verb: str, arguments: list[str]) -> int:
    _refuse_empty(verb, arguments)
    if verb in verb_names():
        from specmargin.cli.verbs import command

        return _call(command(find_verb(verb)), arguments, f"specmargin {verb}")
    module = importlib.import_module(f"specmargin.cli.{verb}")
    return _call(module.app, arguments, f"specmargin {verb}")


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
    arguments = arguments or ["--help"]
    if "_SPECMARGIN_COMPLETE" in os.environ:
        from specmargin.cli.completion import complete

        complete(VERBS)
        return 0
    if arguments and arguments[0] in VERBS:
        return run(arguments[0], arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        raise InputError(
            f"no verb {arguments[0]!r}{nearest_names(arguments[0], VERBS)}; `specmargin --help` lists them"
        )
    return _call(root, arguments, "specmargin")


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
        verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
        message, code = f"{_plain(error.format_message())}; see `specmargin{verb} --help`", 2
    elif isinstance(error, OSError):
        what = f"{error.filename}: cannot be read or written" if error.filename else "cannot write the output"
        message, code = f"{what} ({(error.strerror or str(error)).lower()})", 1
    else:
        message = f"this is a bug ({type(error).__name__}: {error}); run again with SPECMARGIN_DEBUG=1 and report it"
        code = 70
    if type(error).__name__ == "NoArgsIsHelpError":  # a verb of several parts alone: its help page has been printed
        return code
    with contextlib.suppress(OSError, ValueError):
        print(f"specmargin: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
