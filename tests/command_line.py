"""The whole command line inside this process: a start takes longer than most commands."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from specmargin.cli import main as cli
from specmargin.files import _stream


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def ended(*arguments: str, stdin: str | None = None) -> Ended:
    """What `specmargin ARGUMENTS` prints, and how it ends."""
    out, err = io.StringIO(), io.StringIO()
    given = sys.stdin if stdin is None else io.TextIOWrapper(io.BytesIO(stdin.encode()))
    _stream.cache_clear()  # what standard input held before
    with (
        patch.object(sys, "argv", ["specmargin", *arguments]),
        patch.object(sys, "stdin", given),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        cli.main()
    return Ended(int(str(stop.value.code)), out.getvalue(), err.getvalue())


def run(*arguments: str, code: int = 0) -> Ended:
    """The same; it must end with this code."""
    done = ended(*arguments)
    assert done.code == code, done.err or done.out
    return done


def payload(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What it prints with `--json`."""
    result: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).out)
    return result
