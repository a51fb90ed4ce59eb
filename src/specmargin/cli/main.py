"""`specmargin`: one verb a module, imported only when it is called, so that --help stays quick."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from specmargin._version import __version__
from specmargin.errors import InputError, nearest_names

# Our matrices are small, and on a busy machine BLAS threads wait for each other: a plan takes 2.5 s instead of 0.6.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Verb, and what it answers. The module of the same name in this package holds it.
VERBS = {
    "plan": "Does speculation pay here, how deep at each batch, and the engine's own setting for it.",
    "price": "The ledger of one step: seconds, bytes and FLOPs by component.",
    "coverage": "Distinct experts by number of positions.",
    "duel": "One more sequence or one more draft token?",
    "profile": "What captures say: routed experts (routing), draft rounds and policies (acceptance).",
    "design": "Which experts would suit speculation at a target batch: how many, how wide, how many shared.",
    "simulate": "Serve a workload under a policy: latency, goodput, tokens and time, as an engine would.",
    "sweep": "Simulate a grid of models, GPUs, policies and loads: all cores, or a Ray cluster; resumable.",
    "watch": "A running vLLM with our plug-in, live in the terminal; and its Grafana dashboard.",
    "measure": "Prices from your own machine: steps of your engine (vllm), kernels of a GPU (gpu).",
    "validate": "Predicted against measured, beside the tool people would otherwise use.",
    "explore": "The web page: move the controls and see where speculation pays.",
    "report": "Verdict, story and figures as one file to send to a colleague.",
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
        raise typer.Exit(run(verb, ["--help"]))

    return show


for _verb, _help in VERBS.items():
    root.command(_verb, help=_help)(_listed(_verb))


def run(verb: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"specmargin.cli.{verb}")
    return _call(module.app, arguments, f"specmargin {verb}")


def _call(app: typer.Typer, arguments: list[str], name: str) -> int:
    command = typer.main.get_command(app)
    return int(command.main(args=arguments, prog_name=name, standalone_mode=False) or 0)


def main() -> None:
    """Bad input ends in one sentence and exit code 2, never in a traceback."""
    if sys.stdout is None:  # started with its output closed
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no × shows a question mark, not an error
    arguments = sys.argv[1:]
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe went away (`| head`)
        code = 0
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 (nothing is left to flush into)
    except Exception as error:
        code = _complain(error, arguments)
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in VERBS:
        return run(arguments[0], arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        raise InputError(
            f"no verb {arguments[0]!r}{nearest_names(arguments[0], VERBS)}; `specmargin --help` lists them"
        )
    return _call(root, arguments, "specmargin")


def _complain(error: Exception, arguments: list[str]) -> int:
    """One sentence on standard error. Whatever is not the caller's doing is our bug, and says how to report it."""
    if os.environ.get("SPECMARGIN_DEBUG"):
        raise error
    if isinstance(error, InputError):
        message, code = str(error), 2
    elif hasattr(error, "format_message"):  # a usage error of the option parser
        verb = f" {arguments[0]}" if arguments and arguments[0] in VERBS else ""
        message, code = f"{error.format_message().rstrip('.')}; see `specmargin{verb} --help`", 2
        message = " ".join(message.split())
    elif isinstance(error, OSError):
        message, code = f"cannot write: {error.strerror or error}", 1
    else:
        message = f"this is a bug ({type(error).__name__}: {error}); run again with SPECMARGIN_DEBUG=1 and report it"
        code = 70
    with contextlib.suppress(OSError, ValueError):
        print(f"specmargin: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
