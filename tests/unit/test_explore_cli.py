"""`specmargin explore` from the outside: a process that prints an address and answers on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")


@contextmanager
def explored(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "specmargin.cli.main", "explore", "--no-browser", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("http://"):
                break
        try:
            yield said
        finally:
            process.terminate()
            process.wait(timeout=20)


def address(said: str) -> str:
    return next(line for line in said.splitlines() if line.startswith("http://"))


def test_it_opens_with_a_model_of_the_users_own(tmp_path: Path) -> None:
    from tests.explorer.test_api import CONFIG  # noqa: PLC0415

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with explored(str(tmp_path / "config.json"), "--gpu", "b200") as said:
        assert "Warning" not in said
        base, _, query = address(said).partition("?")
        assert base.startswith("http://localhost:") and "gpu=b200" in query and "model=upload" in query
        reply = httpx.get(f"{base}api/plan?{query}", timeout=60)
        assert reply.status_code == 200
        assert reply.json()["gpu"] == "b200"


def test_elsewhere_it_warns_and_wants_its_token() -> None:
    with explored("--host", "0.0.0.0") as said:
        assert "Warning" in said and "token=" in said
        base = address(said).partition("?")[0].replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{base}api/catalog", timeout=60).status_code == 401


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonesuch"], "neither a bundled model"),
        (["--gpu", "h999"], "unknown GPU"),
        (["--host", "203.0.113.7"], "give an address of this machine"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "specmargin.cli.main", "explore", "--no-browser", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
