"""README's install in a clean virtual environment, then README's commands: each runs or names the one line to install.

One test, so that one environment is made. It needs a package registry that pip reaches, and takes half a minute.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
_INSTALL = re.compile(r"^specmargin: .*; run: pip install 'specmargin\[[\w-]+\]'\n$")
_UNREACHABLE = ("No matching distribution", "Could not find a version", "ConnectionError", "NewConnectionError")
# All commands in one process: a start takes longer than most of them.
_RUN_ALL = """
import contextlib, io, json, sys
from specmargin.cli import main as cli
ended = {}
for command in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["specmargin", *command]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    ended[" ".join(command)] = [code, len(out.getvalue()), err.getvalue()]
json.dump(ended, sys.stdout)
"""


def _commands() -> list[list[str]]:
    shown = re.findall(r"`specmargin ([^`]*)`", README) + re.findall(r"^\$ specmargin (.*?)(?: +#.*)?$", README, re.M)
    named = (text.replace("MODEL", "qwen3.6-35b-a3b").replace("GPU", "h200") for text in shown)
    return [shlex.split(text) for text in dict.fromkeys(named) if "completion" not in text]


def _installed(folder: Path) -> Path:
    """The Python of an environment made by README's first `pip install`."""
    line = re.search(r"^\$ pip (install \.)(?: +#.*)?$", README, re.MULTILINE)
    assert line
    venv.create(folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    command = [*pip, *line[1].split(), "--no-compile"]  # most of the files are never imported
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in _UNREACHABLE) and not os.environ.get("CI"):
        pytest.skip("pip reaches no package registry here")
    assert done.returncode == 0, done.stderr
    return python


def test_readme_commands_after_readme_install(tmp_path: Path) -> None:
    python = _installed(tmp_path / "venv")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), "-c", _RUN_ALL],
        cwd=tmp_path,
        env=environment,
        input=json.dumps(_commands()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended: dict[str, tuple[int, int, str]] = json.loads(done.stdout)
    assert len(ended) > 15
    wrong = {
        command: (code, error)
        for command, (code, printed, error) in ended.items()
        if not (code == 0 and printed) and not (code == 2 and _INSTALL.match(error))
    }
    assert wrong == {}
    assert sum(code == 0 for code, _, _ in ended.values()) > 12, "the base install is meant to do most of this"
