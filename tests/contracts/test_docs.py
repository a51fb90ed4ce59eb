"""The documentation holds together: the guide is short, its commands run, links lead somewhere, fields are listed."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from specmargin.acceptance.schema import AcceptanceFile
from specmargin.cli.main import run
from specmargin.live.policy_schema import PolicyFile
from specmargin.prices.measured_schema import PriceFile
from specmargin.routing.schema import RoutingFile
from specmargin.validation.points_schema import Point
from specmargin.verbs.sweep import SweepFile
from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
GUIDE = {name: text for name, text in PAGES.items() if name.startswith("guide/")}

BESIDE = ("README.md", "examples/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LIVE = ("guide/vllm.md", "guide/sglang.md", "guide/watch.md")  # run by test_live_page
# Run by tests of their own, and slow; `localhost` is a server.
ELSEWHERE = ("profile acceptance", "specmargin report", "--hold total", "--plot", "localhost")


def _navigation(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    inside = part.values() if isinstance(part, dict) else part
    return [page for each in inside for page in _navigation(each)]


def test_the_navigation_has_every_page_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["strict"]
    assert sorted(_navigation(settings["nav"])) == sorted(PAGES)


@pytest.mark.parametrize("name", GUIDE)
def test_guide_pages_are_short(name: str) -> None:
    assert len(GUIDE[name].splitlines()) < 150


def _anchors(text: str) -> set[str]:
    """As MkDocs makes them from headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("name", [*PAGES, *(f"../{name}" for name in BESIDE)])
def test_links_lead_somewhere(name: str) -> None:
    page = DOCS / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), target
        assert not anchor or anchor in _anchors(found.read_text()), target


@pytest.mark.parametrize("name", PAGES)
def test_named_files_exist(name: str) -> None:
    for path in re.findall(r"(?<![\w./])((?:src|lab|tests|examples|scripts|docs)/[\w./-]*\w)", PAGES[name]):
        assert (ROOT / path.removesuffix("/FILE")).exists(), path


@pytest.mark.parametrize("name", PAGES)
def test_modules_of_commands_exist(name: str) -> None:
    for module in re.findall(r"python\s-m\s((?:lab|tests)(?:\.\w+)+)", PAGES[name]):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def _commands(text: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    typed = [command for block in blocks for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)]
    return [*typed, *re.findall(r"\| `(specmargin [^`]*)`", text)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GUIDE if name not in LIVE and _commands(GUIDE[name])])
def test_commands_of_the_guide_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after another, in one folder, as a reader would. A profile of acceptance is there."""
    monkeypatch.chdir(tmp_path)
    for profile in ("mine.acceptance.json", "reference.acceptance.json"):
        shutil.copy(ROOT / "src/specmargin/catalog/acceptance/reference-moe.acceptance.json", profile)
    for command in _commands(GUIDE[name]):
        if not command.startswith("specmargin ") or any(part in command for part in ELSEWHERE):
            continue
        _, verb, *arguments = shlex.split(command)
        assert run(verb, arguments) == 0, command
        assert capsys.readouterr().out or "-o" in arguments, command


def test_the_snippets_of_the_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE["guide/python.md"], re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets:
        exec(compile(snippet, "guide/python.md", "exec"), {})
        assert capsys.readouterr().out


def test_the_plan_of_the_guide_is_what_its_command_prints(tmp_path: Path) -> None:
    command = re.search(r"```console\n\$ (specmargin plan .*)\n```", GUIDE["guide/plan.md"])
    assert command
    printed = runpy.run_path(str(ROOT / "scripts" / "update_readme.py"))["output"](command[1], tmp_path)
    assert f"```text\n{printed}\n```" in GUIDE["guide/plan.md"], "run `make readme`"


FILES: dict[str, type[BaseModel]] = {
    "Acceptance profiles": AcceptanceFile,
    "Routing profiles": RoutingFile,
    "Price files": PriceFile,
    "Policy files": PolicyFile,
    "Grid files": SweepFile,
    "Measured speed-ups": Point,
}


@pytest.mark.parametrize("heading", FILES)
def test_every_field_of_a_file_is_listed(heading: str) -> None:
    section = PAGES["reference/files.md"].split(f"\n## {heading}\n")[1].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(first_cells))
    fields = FILES[heading].model_fields
    assert sorted(listed) == sorted(field.alias or name for name, field in fields.items())
