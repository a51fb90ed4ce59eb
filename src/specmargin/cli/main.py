"""`specmargin`: one verb a module, imported only when it is called, so that --help stays quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from specmargin._version import __version__
from specmargin.errors import InputError, nearest_names

# Verb, and what it answers. The module of the same name in this package holds it.
VERBS = {
    "plan": "Does speculation pay here, how deep at each batch, and the engine's own setting for it.",
    "price": "The ledger of one step: seconds, bytes and FLOPs by component.",
    "coverage": "Distinct experts by number of positions.",
    "duel": "One more sequence or one more draft token?",
    "models": "The bundled models.",
    "gpus": "The bundled devices.",
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
) -> None:
    if version:
        typer.echo(f"specmargin {__version__}")
        raise typer.Exit


def _listed(verb: str) -> Callable[[], None]:
    """What stands for a verb in the list of `specmargin --help`; running it never gets here."""

    def show() -> None:
        run(verb, ["--help"])

    return show


for _verb, _help in VERBS.items():
    root.command(_verb, help=_help)(_listed(_verb))


def run(verb: str, arguments: list[str]) -> None:
    module = importlib.import_module(f"specmargin.cli.{verb}")
    module.app(args=arguments, prog_name=f"specmargin {verb}")


def main() -> None:
    """Bad input ends in one sentence and exit code 2, never in a traceback."""
    arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in VERBS:
            run(arguments[0], arguments[1:])
        if arguments and not arguments[0].startswith("-"):
            raise InputError(
                f"no verb {arguments[0]!r}{nearest_names(arguments[0], VERBS)}; `specmargin --help` lists them"
            )
        root(prog_name="specmargin")
    except InputError as error:
        typer.echo(f"specmargin: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe went away (`| head`)
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
