"""The base install: every verb answers without the optional packages, or names the extra in one sentence."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specmargin.verbs import verb_names
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from try_install import COMMANDS, PACKAGES

OPTIONAL = sorted({"ray", "torch", "triton", *(name for names in PACKAGES.values() for name in names)})
_SIMULATE = ("simulate", "qwen3.6-35b-a3b", "--gpu", "h200", "--concurrency", "2", "--osl", "20", "--json")


def _without(packages: Sequence[str], *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command line in a Python where these packages are not found."""
    hidden = f"sys.modules.update(dict.fromkeys({list(packages)!r}))"
    code = f"import sys; {hidden}; sys.argv[0] = 'specmargin'\nfrom specmargin.cli.main import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_every_verb_has_a_command_to_try() -> None:
    assert {command.verb for command in COMMANDS} == set(verb_names())


@pytest.mark.slow
def test_every_verb_answers_or_names_the_extra() -> None:
    """`make release` runs the same in an environment that has only the wheel."""
    command = [sys.executable, str(ROOT / "scripts" / "try_install.py"), "--hide", *OPTIONAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 faults" in done.stdout


def test_a_shortened_run_says_so_and_a_short_one_is_whole() -> None:
    shortened = json.loads(_without(OPTIONAL, *_SIMULATE, "--requests", "600", "--policy", "none").stdout)
    assert shortened["requests"] == shortened["finished"] == 200
    assert shortened["shortened"] == "only 200 of 600 requests: pip install 'specmargin[fast]' to run all of them"
    whole = json.loads(_without(OPTIONAL, *_SIMULATE, "--requests", "20", "--policy", "none").stdout)
    assert whole["requests"] == 20
    assert whole["shortened"] is None


@pytest.mark.slow
def test_loads_of_the_readme_are_whole() -> None:
    """Its outputs are those of the base install."""
    typed = re.findall(r"^\$ specmargin (simulate [^|\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert typed
    for command in typed:
        done = _without(OPTIONAL, *shlex.split(command))
        assert done.returncode == 0, done.stderr
        assert "specmargin[fast]" not in done.stdout + done.stderr


@pytest.mark.slow
def test_instances_for_prefill_share_a_shortened_run() -> None:
    load = ("--qps", "20", "--isl", "300", "--osl", "200", "--prefill-instances", "2", "--decode-instances", "2")
    said = json.loads(
        _without(OPTIONAL, "simulate", "qwen3-8b", "--gpu", "h200", *load, "--policy", "none", "--json").stdout
    )
    assert said["requests"] == said["finished"] < 400
    assert said["shortened"].startswith(f"only {said['requests']} of 400 requests")


def test_a_parquet_table_names_the_extra_before_any_work(tmp_path: Path) -> None:
    plan = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "-o", "plan.parquet")
    done = _without(["polars"], *plan, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "specmargin: polars is not installed; run: pip install 'specmargin[fast]'\n"


def test_a_package_that_no_extra_has_is_still_a_bug(tmp_path: Path) -> None:
    done = _without(["specmargin.verbs.plan"], "plan", "qwen3.6-35b-a3b", "--gpu", "h200", cwd=tmp_path)
    assert done.returncode == 70
