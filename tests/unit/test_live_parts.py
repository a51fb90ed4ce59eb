"""Which parts of an engine a release has: breaking changes, each with the feature that it costs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specmargin.errors import EngineError
from specmargin.live import parts
from specmargin.live.engine_source import EngineSource
from specmargin.live.parts import Feature, Part, PartsList, Use, check_sources

MODULES = {
    "__init__.py": "from made.config import Config\n",
    "_version.py": "__version__ = version = '7.1.0'\n",
    "config.py": "class Config:\n    depth: int = 1\n    table: list | None = None\n",
    "base.py": """
import abc
class Base(abc.ABC):
    def __init__(self, config):
        self.config = config
        if config:
            with open("x") as self.file:
                self.a, self.b = 1, 2
    def close(self): ...
    @property
    def size(self): return 1
""",
    "scheduler.py": """
from typing import TYPE_CHECKING
from .base import Base
if TYPE_CHECKING:
    from made.config import Config
class Scheduler(Base):
    def schedule(self, throttle: bool = False): ...
    def update(self, output, result): ...
    @classmethod
    def dummy(cls, size, *, padding=True): ...
""",
    "output.py": """
from dataclasses import dataclass, field
@dataclass
class Output:
    ids: list
    depth: int = 0
    made: int = field(init=False)
""",
    "tools/__init__.py": "from .more import *\n",
    "tools/more.py": "import json\nasync def helper(a, b=1, *, c): ...\n",
}
LIST = """
observe made.scheduler:Scheduler overrides schedule(...)
observe made.scheduler:Scheduler overrides close()
observe made.scheduler:Scheduler reads config
observe made.scheduler:Scheduler reads file
observe made.scheduler:Scheduler reads b
observe made.scheduler:Scheduler reads size
observe made.scheduler:Scheduler extends made.base.Base
observe made.output:Output reads ids
schedule made:Config reads table
depth made.scheduler:Scheduler overrides update(output, result)
depth made.output:Output writes depth
gate made.output:Output adds order
gate made.output:Output calls __init__(ids)
gate made.scheduler:Scheduler replaces dummy(size, padding=)
capture made.tools calls helper(a, c=)
metrics made.tools.more names json
"""
OPTIONAL = Part(feature=Feature.DEPTH, use=Use.READS, module="made", owner="Config", text="mode", optional=True)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with every kind of part, and the list of them."""
    for name, text in MODULES.items():
        file = tmp_path / "made" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    listed = []
    for line in LIST.strip().splitlines():
        feature, of, use, text = line.split(maxsplit=3)
        module, _, owner = of.partition(":")
        listed.append(Part(feature=Feature(feature), use=Use(use), module=module, owner=owner, text=text))
    made = PartsList(engine="made", title="Made", package="made", tested=("7.0",), parts=tuple(listed))
    monkeypatch.setattr(parts, "parts_list", lambda _: made)
    return tmp_path


def change(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / "made" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_all_parts_are_found_through_bases_imports_and_conditions(made: Path) -> None:
    for folder in (made, made / "made"):
        report = check_sources("made", folder)
        assert report.problems == ()
        assert report.lost == ()
        assert report.summary == "tested with 7.0; this is 7.1.0, all 16 parts found"
        assert not report.is_tested


ALL = ("observe", "schedule", "depth", "gate", "capture", "metrics")


@pytest.mark.parametrize(
    ("file", "old", "new", "lost", "said"),
    [
        # a renamed method
        ("scheduler.py", "def update(", "def refresh(", ("depth", "gate"), "Scheduler.update(output, result) is not"),
        ("base.py", "def close", "def end", ALL, "Scheduler.close() is not there"),
        # parameters added, renamed, moved
        ("scheduler.py", "output, result", "output, result, more", ("depth", "gate"), "needs more too"),
        ("scheduler.py", "output, result", "output, result, more=1", (), ""),
        ("scheduler.py", "output, result", "result, output", ("depth", "gate"), "has other parameters: result, output"),
        ("scheduler.py", "throttle: bool = False", "throttle", (), ""),  # it is passed on
        ("scheduler.py", "padding=True", "padded=True", ("gate",), "has no parameter padding"),
        ("tools/more.py", "b=1", "b", ("capture",), "made.tools.helper(a, c=) needs b too"),
        # missing fields and attributes
        ("output.py", "    depth: int = 0\n", "", ("depth", "gate"), "Output.depth is not there"),
        ("config.py", "table:", "tables:", ("schedule", "depth", "gate"), "Config.table is not there"),
        ("base.py", "self.config =", "config =", ALL, "Scheduler.config is not there"),
        ("output.py", "    ids: list\n", "    ids: list\n    names: list\n", ("gate",), "needs names too"),
        # other classes
        ("output.py", "@dataclass\n", "@dataclass(frozen=True)\n", ("depth", "gate"), "Output.depth cannot be set"),
        ("output.py", "@dataclass\n", "@dataclass(slots=True)\n", ("gate",), "Output with attributes of others takes"),
        ("output.py", "class Output:", "class Output(msgspec.Struct):", ("gate",), "takes none"),
        ("scheduler.py", "class Scheduler(Base)", "class Scheduler", ALL, "Scheduler.close() is not there"),
        ("scheduler.py", "@classmethod", "@staticmethod", ("gate",), "is not a class method of its own"),
        ("scheduler.py", "def schedule(", "schedule = 3\n    def other(", ALL, "Scheduler.schedule(...) is not there"),
        ("scheduler.py", "class Scheduler", "class Planner", ALL, "no class Scheduler in made.scheduler"),
        ("tools/more.py", "import json", "", ("metrics",), "made.tools.more.json is not there"),
        ("output.py", "class Output:", "class Output(:", ALL, "no module made.output"),  # cannot be parsed
    ],
)
def test_a_breaking_change_costs_the_feature_that_needs_it(
    made: Path, file: str, old: str, new: str, lost: tuple[str, ...], said: str
) -> None:
    change(made, file, old, new)
    report = check_sources("made", made)
    assert report.lost == lost
    assert bool(report.problems) == bool(lost)
    if lost:
        assert any(said in str(problem) for problem in report.problems), list(map(str, report.problems))
        assert report.why_lost(Feature(lost[0])).startswith(str(report.problems_of(Feature(lost[0]))[0]))
        assert f"{16 - len(report.problems)} of 16 parts found" in report.summary


def test_a_feature_that_stands_on_a_lost_one_says_so(made: Path) -> None:
    change(made, "config.py", "table:", "tables:")
    report = check_sources("made", made)
    assert report.why_lost(Feature.GATE) == ("it needs depth control: it needs schedule: Config.table is not there")


def test_a_part_that_is_optional_costs_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = parts.parts_list("made")
    monkeypatch.setattr(parts, "parts_list", lambda _: replace(listed, parts=(*listed.parts, OPTIONAL)))
    report = check_sources("made", made)
    assert (report.lost, report.problems) == ((), ())
    assert report.found == "16 of 17 parts found, 1 not needed"
    assert list(map(str, report.unneeded)) == ["Config.mode is not there"]
    change(made, "config.py", "table:", "mode: int\n    table:")
    assert check_sources("made", made).found == "all 17 parts found"


def test_a_module_that_moved(made: Path) -> None:
    shutil.move(made / "made" / "scheduler.py", made / "made" / "planner.py")
    report = check_sources("made", made)
    assert report.lost == ALL
    assert "no module made.scheduler" in report.why_lost(Feature.OBSERVE)


def test_a_class_that_moved_and_is_imported_from_there_is_found(made: Path) -> None:
    shutil.move(made / "made" / "scheduler.py", made / "made" / "planner.py")
    (made / "made" / "scheduler.py").write_text("from made.planner import Scheduler as Scheduler\n")
    assert check_sources("made", made).problems == ()


def test_attributes_that_a_class_looks_up(made: Path) -> None:
    (made / "made" / "context.py").write_text(
        "class Context:\n    def __getattr__(self, name): return _NAMES[name]\n_NAMES = {'rank': 1}\n"
    )
    source = EngineSource(made / "made")
    context = source.find("made.context", "Context")
    assert context is not None
    assert source.has_attribute(context, "rank")
    assert not source.has_attribute(context, "group")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("made-8.0.dist-info/METADATA", "Name: made\nVersion: 8.0\n"),
        ("PKG-INFO", "Name: made\nVersion: 8.0\n"),
        ("made/version.py", '__version__ = "8.0"\n'),
    ],
)
def test_the_release_is_read_from_files(made: Path, where: str, text: str) -> None:
    (made / "made" / "_version.py").unlink()
    assert check_sources("made", made).release == ""
    file = made / where
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert check_sources("made", made).release == "8.0"


def test_releases_are_tested_by_their_first_numbers(made: Path) -> None:
    for release in ("7.0", "7.0.3", "7.0rc1", "7.0.0+cpu"):
        assert check_sources("made", made, release=release).is_tested
    for release in ("7.00", "7.01", "17.0", ""):
        assert not check_sources("made", made, release=release).is_tested


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no Python package 'vllm' in this folder"):
        check_sources("vllm", tmp_path)
