"""The workflows of the public forge: valid by their schema, pinned, with no more rights than they need."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


@pytest.mark.slow
def test_they_are_valid() -> None:
    """As `make check` does, offline."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_and_versions(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        granted = job.get("permissions", {})
        assert set(granted) <= {"id-token", "pages"}, name
        assert not granted or name == "publish"
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step.get("uses", "a/b@v1")), step
        assert job["timeout-minutes"] <= 60


def test_every_release_of_python_that_is_promised_is_tested() -> None:
    tested = _read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == ["3.11", "3.12", "3.13", "3.14"]


def test_targets_that_they_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {name for path in WORKFLOWS for name in re.findall(r"make ([\w-]+)", path.read_text())}
    assert {"check", "test", "test-live", "docs", "release"} <= named
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)
