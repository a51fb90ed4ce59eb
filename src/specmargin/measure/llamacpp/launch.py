"""Programs of llama.cpp: which one a path is, and a `llama-server` that is started to be timed."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specmargin.errors import InputError
from specmargin.measure.llamacpp.order import Order
from specmargin.measure.llamacpp.server import Server

_HELP_SECONDS = 30.0
_LOAD_SECONDS = 900.0
_POLL_SECONDS = 0.2
#: Options that a program's own help names; the first tells which program it is, the others are needed here.
_NEEDED = {
    "llama-bench": ("--n-prompt", "--n-gen", "--n-depth"),
    "llama-server": ("--slots", "--parallel", "--ctx-size", "--port"),
}


class ProgramKind(StrEnum):
    BENCH = "llama-bench"
    SERVER = "llama-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    path: str
    kind: ProgramKind
    build: str  # b11434; "" where it does not say
    help_text: str

    @classmethod
    def at(cls, path: str) -> Program:
        """An error if it is no program of llama.cpp, or one without what is needed."""
        said = _run([path, "--help"], path)
        kind = next((kind for kind in ProgramKind if _NEEDED[kind][0] in said), None)
        if kind is None:
            raise InputError(
                f"--binary: {path} is not llama-bench or llama-server of llama.cpp: its --help names neither "
                "--n-prompt nor --slots"
            )
        missing = [option for option in _NEEDED[kind] if option not in said]
        if missing:
            raise InputError(
                f"--binary: {path} is another version of {kind}: it has no {', '.join(missing)}; use a build of 2025 "
                "or later"
            )
        found = re.search(r"(?:version: |build )(\d+)\b(?!\.)", _run([path, "--version"], path))
        return cls(path=path, kind=kind, build=f"b{found[1]}" if found else "", help_text=said)


def _run(command: Sequence[str], path: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HELP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"--binary: {path} did not answer --help within {_HELP_SECONDS:g} s: it is not llama.cpp's"
        ) from None
    except OSError as error:
        raise InputError(
            f"--binary: {path} cannot be run ({error.strerror}); give the path of llama-bench or llama-server"
        ) from None
    return done.stdout.decode("utf-8", errors="replace")


@contextmanager
def started(
    program: Program, model: Path, order: Order, *, speculation: Sequence[str], log: Path, patience: float
) -> Iterator[Server]:
    """A server of the model with as many slots as the largest batch, ended afterwards."""
    slots, port = max(order.batches), _free_port()
    command = [program.path, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", str(slots)]
    command += ["-c", str(slots * order.slot_tokens), *shlex.split(order.options), *speculation]
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {shlex.join(command)}\n")
        out.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            server = Server.at(f"http://127.0.0.1:{port}", patience)
            _wait(process, server, log)
            yield server
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], server: Server, log: Path) -> None:
    until = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise InputError(f"llama-server ended while it loaded ({_last_line(log)}); its output is in {log}")
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(server.url + "/health", timeout=5.0).close()
            return
        time.sleep(_POLL_SECONDS)
    raise InputError(f"llama-server did not load the model within {_LOAD_SECONDS:g} s; its output is in {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    """The last error of the log, or its last line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b| E ", line)]
    return (errors or lines or ["no output"])[-1].strip()[-200:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def speculation_options(drafter: str, depth: int) -> list[str]:
    """Of a type that needs no file, such as draft-mtp, or of a draft model's GGUF file."""
    named = ["--spec-draft-n-max", str(depth), "--spec-draft-p-min", "0"]
    if drafter.endswith(".gguf") or Path(drafter).is_file():
        return ["--spec-type", "draft-simple", "--spec-draft-model", drafter, *named]
    if drafter == "ngram-simple":
        return ["--spec-type", drafter, "--spec-ngram-simple-size-m", str(depth)]
    return ["--spec-type", drafter, *named]
