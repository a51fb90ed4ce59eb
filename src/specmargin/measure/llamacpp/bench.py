"""Steps of `llama-bench`: a prompt of p tokens after a cached context is one step with p positions of one sequence.

One sequence only, and the model is loaded once: its tests run one after the other, each as often as ordered. Its
prompts want one logit, as those of a server do (`measure/llamacpp/steps.py`).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specmargin.errors import InputError
from specmargin.measure.llamacpp.launch import Program
from specmargin.measure.llamacpp.order import STEPS, Order, Timed, Watcher
from specmargin.measure.points import Kind, Point
from specmargin.measure.records import Records


def measure_bench(
    program: Program, model: Path, order: Order, records: Records, *, deadline: float, log: Path, watch: Watcher
) -> dict[str, Any]:
    """What llama-bench says about the machine, from its last line."""
    timed, said = Timed(records=records, run=STEPS), {}
    points = [point for point in (*order.plain(), *order.verified()) if point.batch == 1]
    missing = [point for point in points if not timed.seconds(point)]
    watch(STEPS, len(missing), 0)
    for done, test in enumerate(_tests(program, model, order, missing, deadline=deadline, log=log), start=1):
        point, seconds = point_of(test)
        timed.add(point, seconds, **({"outputs": 1} if point.depth else {}))
        said = test
        watch(STEPS, len(missing), done)
    return said


def point_of(test: Mapping[str, Any]) -> tuple[Point, list[float]]:
    """And its timings, in seconds per step."""
    try:
        prompt, tokens, context = int(test["n_prompt"]), int(test["n_gen"]), int(test["n_depth"])
        samples = [float(value) * 1e-9 for value in test["samples_ns"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"this version of llama-bench writes no {error.args[0]} in its JSON; use a build of 2025 or later"
        ) from None
    if tokens:
        at = Point(batch=1, depth=0, context=context, kind=Kind.NONE)
        return at, [value / tokens for value in samples]
    return Point(batch=1, depth=prompt - 1, context=context, kind=Kind.RANDOM), samples


def _tests(
    program: Program, model: Path, order: Order, missing: list[Point], *, deadline: float, log: Path
) -> Iterator[dict[str, Any]]:
    for context in dict.fromkeys(point.context for point in missing):
        depths = [point.depth for point in missing if point.context == context]
        command = [program.path, "-m", str(model), "-d", str(context), "-r", str(order.repeats), "-o", "jsonl"]
        command += ["-p", ",".join(str(depth + 1) for depth in depths if depth) or "0"]
        command += ["-n", str(order.tokens if 0 in depths else 0), *shlex.split(order.options)]
        yield from _lines(command, deadline=deadline, log=log)


def _lines(command: list[str], *, deadline: float, log: Path) -> Iterator[dict[str, Any]]:
    """Each test as it ends; the program is ended at the deadline."""
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {shlex.join(command)}\n")
        out.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                if time.time() > deadline:
                    return
            if process.wait():
                raise InputError(f"llama-bench ended with exit code {process.returncode}; its output is in {log}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
