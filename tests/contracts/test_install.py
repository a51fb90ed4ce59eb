"""README's install in a clean virtual environment, then README's commands: each prints what README shows, or names the
one line to install.

One test, so that one environment is made. It needs a package registry that pip reaches, and takes half a minute.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "update_readme.py"))
_INSTALL = re.compile(r"^specmargin: .*; run: pip install 'specmargin\[[\w-]+\]'\n$")
_ELSEWHERE = ("http", "explore", "live-check", "profile acceptance")  # a server, a page, an engine and its traffic
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
    ended[" ".join(command)] = [code, out.getvalue(), err.getvalue()]
json.dump(ended, sys.stdout)
"""


def _commands() -> dict[str, str]:
    """Those that need no engine, without `| head`, and what README shows of each."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
    shown = re.findall(r"^\$ specmargin (.*?)(?: +#.*)?\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE)
    inline = [(text, "") for text in re.findall(r"`specmargin ([^`]*)`", README)]
    asked = {text.partition(" | ")[0]: printed.strip() for text, printed in [*shown, *inline]}
    return {text: printed for text, printed in asked.items() if not any(word in text for word in _ELSEWHERE)}


def _installed(folder: Path) -> Path:
    """The Python of an environment made by README's first `pip install`."""
    line = re.search(r"^\$ pip (install \.)(?: +#.*)?$", README, re.MULTILINE)
    assert line
    venv.create(folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    subject = os.environ.get("SPECMARGIN_WHEEL", ".")  # `make release` gives what it has built
    command = [*pip, "install", subject, "--no-compile"]  # most of the files are never imported
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in _UNREACHABLE) and not os.environ.get("CI"):
        pytest.skip("pip reaches no package registry here")
    assert done.returncode == 0, done.stderr
    return python


def test_readme_commands_after_readme_install(tmp_path: Path) -> None:
    python, commands = _installed(tmp_path / "venv"), _commands()
    SCRIPT["prepare"](tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), "-c", _RUN_ALL],
        cwd=tmp_path,
        env=environment,
        input=json.dumps([shlex.split(command) for command in commands]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    assert len(ended) == len(commands) > 7
    wrong = {
        command: (code, error)
        for command, (code, printed, error) in ended.items()
        if not (code == 0 and printed) and not (code == 2 and _INSTALL.match(error))
    }
    assert wrong == {}
    for (code, printed, _), shown in zip(ended.values(), commands.values(), strict=True):
        if code == 0 and "specmargin[fast]" not in printed:  # it shortens what is simulated, and says so
            assert shown in "\n".join(line.rstrip() for line in printed.splitlines())
    assert sum(code == 0 for code, _, _ in ended.values()) > 4, "the base install is meant to do most of this"
