"""Run every verb of the installed Specmargin once, on small inputs: each answers, or names the extra that it lacks.

    python scripts/try_install.py                       # with what this Python has
    python scripts/try_install.py --hide numba polars   # as if these packages were not installed

Ends with 1 if a verb fails in another way, says that something is a bug, or has no command here.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: What an extra installs, as far as the commands below need it.
PACKAGES = {
    "fast": ("numba", "polars"),
    "page": ("altair", "vl_convert", "fastapi", "starlette", "uvicorn"),
    "tables": ("aiconfigurator_core", "polars"),
    "live": ("scipy",),
}
MODEL, GPU = "qwen3.6-35b-a3b", ("--gpu", "h200")
LOAD = ("--isl", "200", "--osl", "20")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    verb: str
    arguments: Sequence[str] = ()
    extra: str | None = None  # without it the command ends in one sentence that names it
    ends: bool = True  # False: it would serve until it is stopped, so it is run only where it is refused
    elsewhere: bool = False  # needs an engine, a server or a GPU: here it says so in one sentence

    @property
    def words(self) -> list[str]:
        return [*self.verb.split(), *self.arguments]


def _commands() -> Iterator[Command]:
    scenario = (MODEL, *GPU)
    yield Command(verb="models")
    yield Command(verb="gpus")
    yield Command(verb="coverage", arguments=(MODEL,))
    yield Command(verb="price", arguments=scenario)
    yield Command(verb="duel", arguments=(*scenario, "--batch", "1", "--alpha", "0.9"))
    yield Command(verb="design", arguments=(*scenario, "--batch", "64"))
    for options in (
        (),
        ("--explain",),
        ("--grid",),
        ("--drafter", "all"),
        ("--compare", "datasheet"),
        ("-o", "plan.csv"),
        ("--policy", "policy.json"),
        ("--acceptance", "rounds.csv"),
        ("--concurrency", "4", *LOAD),
        ("--qps", "2", *LOAD),
    ):
        yield Command(verb="plan", arguments=(*scenario, *options))
    yield Command(verb="plan", arguments=(MODEL, "--gpu", "h100,h200"))
    yield Command(verb="plan", arguments=(*scenario, "-o", "plan.parquet"), extra="fast")
    yield Command(verb="plan", arguments=(*scenario, "--plot", "plan.svg"), extra="page")
    yield Command(verb="plan", arguments=(*scenario, "--prices", "tables"), extra="tables")
    yield Command(verb="simulate", arguments=(*scenario, "--qps", "6", "--policy", "controller,fixed:2,none"))
    trace = ("--trace", "trace.csv", "--policy", "none", "--save-requests", "requests.csv", "--save-steps", "steps.csv")
    yield Command(verb="simulate", arguments=(*scenario, *trace))
    bank = ("--concurrency", "2", "--requests", "4", "--bank", "rounds.csv")
    yield Command(verb="simulate", arguments=(*scenario, *bank, "--policy", "fixed:2,none"))
    yield Command(verb="simulate", arguments=(*scenario, *bank, "--policy", "controller"), extra="fast")
    yield Command(verb="sweep", arguments=("--example",))
    yield Command(verb="sweep", arguments=("grid.toml", "--workers", "1", "--table", "cells.csv"))
    yield Command(verb="profile acceptance", arguments=("rounds.csv", "-o", "own.acceptance.json"))
    yield Command(verb="profile acceptance", arguments=("metrics.jsonl",))
    yield Command(verb="profile acceptance", arguments=("rounds.csv", "--ladder", "--at", "real"), extra="fast")
    yield Command(verb="profile routing", arguments=("experts.npy", "--experts", "8"), extra="fast")
    measured = "vllm-0.26-h200-qwen3-4b"
    yield Command(verb="validate", arguments=(measured,))
    yield Command(verb="validate speedups", arguments=("points.csv",))
    yield Command(verb="doctor", arguments=("--log", "server.log", "--model", MODEL, *GPU))
    yield Command(verb="report", arguments=(*scenario, "-o", "report.html"), extra="page")
    yield Command(
        verb="site", arguments=("public", "--models", MODEL, "--gpus", "h200", "--engines", "vllm"), extra="page"
    )
    yield Command(verb="explore", extra="page", ends=False)
    for verb in ("watch", "doctor"):
        yield Command(verb=verb, arguments=("http://127.0.0.1:9",), elsewhere=True)
    yield Command(verb="live-check", elsewhere=True)
    yield Command(verb="measure vllm", arguments=(MODEL, "-o", "mine.json"), elsewhere=True)
    here = ("--url", "http://localhost:9")  # where nothing answers
    yield Command(verb="measure llamacpp", arguments=(MODEL, *here, "-o", "mine.json"), elsewhere=True)
    yield Command(verb="measure gpu", arguments=(*scenario, "-o", "mine.json"), elsewhere=True)


COMMANDS = tuple(_commands())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hide", nargs="*", default=[], metavar="PACKAGE", help="as if it were not installed")
    for package in parser.parse_args(arguments).hide:
        sys.modules[package] = None  # type: ignore[assignment]  # what makes Python say that it is not there
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_inputs(Path(folder))
        faults = [fault for command in COMMANDS if (fault := _tried(command)) is not None]
        os.chdir("/")
    faults += [f"{verb}: has no command in {Path(__file__).name}" for verb in _untried()]
    print(f"{len(COMMANDS)} commands, {len(faults)} faults", *faults, sep="\n  ")
    return int(bool(faults))


def _untried() -> list[str]:
    from specmargin.verbs import verb_names  # noqa: PLC0415 (after packages are hidden)

    return sorted(set(verb_names()) - {command.verb for command in COMMANDS})


def _tried(command: Command) -> str | None:
    """What is wrong with how it ended; None: nothing."""
    missing = command.extra is not None and not all(find_spec(name) for name in PACKAGES[command.extra])
    if not command.ends and not missing:
        return None
    begun = time.perf_counter()
    code, said = run(command.words)
    ended = "ok" if code == 0 else said.strip()
    print(f"{time.perf_counter() - begun:5.1f} s  specmargin {' '.join(command.words)}: {ended}", flush=True)
    if code == 0:
        return f"{command.words}: needs the extra {command.extra} no longer" if missing else None
    is_sentence = said.startswith("specmargin: ") and said.count("\n") == 1 and "bug" not in said
    named = command.extra is None or f"pip install 'specmargin[{command.extra}]'" in said
    return None if is_sentence and named and (missing or command.elsewhere) else f"{command.words}: {said}"


def run(words: Sequence[str]) -> tuple[int, str]:
    """The exit code, and what was written to standard error."""
    from specmargin.cli.main import main as specmargin  # noqa: PLC0415 (after packages are hidden)

    errors, arguments = io.StringIO(), sys.argv
    sys.argv = ["specmargin", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            specmargin()
    except SystemExit as end:
        return int(end.code or 0), errors.getvalue()
    finally:
        sys.argv = arguments
    return 0, errors.getvalue()


# --- inputs ---


def write_inputs(folder: Path) -> None:
    import numpy as np  # noqa: PLC0415 (of the environment that is tried)

    random = np.random.default_rng(0)
    rounds = [
        f"{commits},{'code' if i % 2 else 'prose'},{i // 8},{a:.3f},{b:.3f}"
        for i, (commits, a, b) in enumerate(zip(random.integers(1, 4, 64), *random.random((2, 64)), strict=True))
    ]
    arrivals = [f"2026-11-16 18:15:{second:02d}.5000000,200,20" for second in range(8)]
    metrics = {"per_step_drafted": [3, 3, 3], "per_step_accepted": [1, 3, 0]}
    point = "a,mine,qwen3-30b-a3b,h200,vllm,eagle,3,4,200,20,1024,2.2,100,150,tok/s,1.5,1,own"
    texts = {
        "rounds.csv": ["commits,category,prompt,a0,a1", *rounds],
        "trace.csv": ["TIMESTAMP,ContextTokens,GeneratedTokens", *arrivals],
        "metrics.jsonl": [json.dumps(metrics)] * 3,
        "points.csv": [
            "id,source,model,gpu,engine,drafter,depth,batch,isl,osl,context,accept_length,plain,speculative,unit,"
            "speedup,prefill_inside,stated_as",
            point,
        ],
        "server.log": [
            "INFO SpecDecoding metrics: Mean acceptance length: 2.20, Per-position acceptance rate: 0.7, 0.5"
        ],
        "grid.toml": [f'base.model = "{MODEL}"', 'base.gpu = "h200"', "base.requests = 120", "grid.qps = [4, 6]"],
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    experts = np.argsort(random.random((64, 2, 8)), axis=2)[:, :, :2]
    np.save(folder / "experts.npy", experts.astype(np.uint8))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
