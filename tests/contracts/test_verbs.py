"""A verb is one file: the command line, Python, JSON, tables and charts find it without being told."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specmargin
from specmargin import verbs
from specmargin.verbs import find_verb, split_verb, summary, verb_names
from tests.command_line import payload, run
from tests.conftest import ROOT

NEW = '''"""Count to a number.

Example: specmargin count 3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Table, bold, right
from specmargin.answers.outputs_schema import ChartOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import verb

if TYPE_CHECKING:
    from specmargin.show.figures.figure import Chart


class CountRequest(Request):
    last: Annotated[int, Field(ge=1, description="The last number."), Shown(argument=True)]


@verb(CountRequest, outputs=ChartOutputs)
def count(request: CountRequest) -> CountAnswer:
    return CountAnswer(request=request, numbers=tuple(range(1, request.last + 1)))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CountAnswer(Answer[CountRequest]):
    numbers: tuple[int, ...]

    schema: ClassVar[str] = "specmargin.count/1"

    @property
    def verdict(self) -> str:
        return f"Counted to {self.request.last}."

    def table(self) -> list[dict[str, Any]]:
        return [{"number": number} for number in self.numbers]

    def values(self) -> dict[str, Any]:
        return {"rows": self.table()}

    def blocks(self) -> Iterator[Block]:
        yield bold(self.verdict)
        yield Table(columns=right("number"), rows=[[str(number)] for number in self.numbers])

    def chart(self) -> Chart:
        import altair as alt

        return alt.Chart(alt.InlineData(values=self.table())).mark_point().encode(x="number:Q")
'''


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The one file that a new verb needs, where verbs are looked for."""
    (tmp_path / "count.py").write_text(NEW, encoding="utf-8")
    monkeypatch.setattr(verbs, "__path__", [*verbs.__path__, str(tmp_path)])
    verb_names.cache_clear()
    yield tmp_path
    verb_names.cache_clear()
    sys.modules.pop("specmargin.verbs.count", None)


def test_a_new_verb_is_one_file(count: Path) -> None:
    assert "Count to a number." in run("--help").out
    page = run("count", "--help").out
    assert "The last number." in page
    assert "--plot" in page
    assert run("count", "3").out.split() == ["Counted", "to", "3.", "number", "1", "2", "3"]
    assert payload("count", "2")["rows"] == [{"number": 1}, {"number": 2}]
    assert "LAST must be at least 1, got 0" in run("count", "0", code=2).err
    run("count", "2", "-o", str(count / "t.csv"), "--plot", str(count / "t.svg"))
    assert (count / "t.csv").read_text(encoding="utf-8") == "number\n1\n2\n"
    assert "<svg" in (count / "t.svg").read_text(encoding="utf-8")
    assert str(specmargin.count(3)) == "Counted to 3."
    answer = specmargin.count(last=2)
    assert str(answer) == "Counted to 2."
    assert answer.to_frame()["number"].to_list() == [1, 2]


@pytest.mark.parametrize("name", verb_names())
def test_every_verb_has_a_request_and_a_page(name: str) -> None:
    verb = find_verb(name)
    assert verb.name == name
    assert verb.help.split("\n\n")[0].replace("\n", " ") == summary(name)
    undescribed = [
        field
        for kind in (verb.request, verb.outputs)
        for field, entry in kind.model_fields.items()
        if not entry.description
    ]
    assert undescribed == []


def test_help_pages_import_neither_numpy_nor_numba() -> None:
    pages = "; ".join(f"run({name.split()[0]!r}, {[*name.split()[1:], '--help']!r})" for name in verb_names())
    code = f"import sys; from specmargin.cli.main import run; {pages}; "
    code += "sys.exit(' '.join({'numpy', 'numba', 'polars', 'altair', 'fastapi'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


def test_names_of_two_words() -> None:
    assert split_verb(["profile", "routing", "bank"]) == ("profile routing", ["bank"])
    assert split_verb(["validate", "speedups", "x.csv"]) == ("validate speedups", ["x.csv"])
    assert split_verb(["validate", "x.json"]) == ("validate", ["x.json"])
    assert split_verb(["nonsense", "x"]) == ("", ["nonsense", "x"])
    assert split_verb([]) == ("", [])


def test_python_functions_are_those_of_the_requests() -> None:
    """`make api` writes them."""
    written = (ROOT / "src" / "specmargin" / "api.py").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "scripts" / "update_api.py"))["text"]()
