"""Python asks through the same request as the command line, and gets the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pytest

import specmargin
from specmargin.answers.answer import Answer
from specmargin.cli.main import run
from specmargin.errors import InputError
from tests.conftest import ROOT

MOE = "qwen3.6-35b-a3b"
GRID = {
    "base": {"model": MOE, "gpu": "h200", "prices": "datasheet", "requests": 8, "qps": 4, "isl": 200, "osl": "1k"},
    "grid": {"policy": ["none", "fixed:2"]},
}
TOML = f"""
[base]
model = "{MOE}"
gpu = "h200"
prices = "datasheet"
requests = 8
qps = 4
isl = 200
osl = 1024
[grid]
policy = ["none", "fixed:2"]
"""
_LOAD: dict[str, Any] = {"qps": 4, "requests": 8, "osl": 20, "isl": "1k", "policy": "fixed:2,none"}
#: The same question in Python and on the command line.
QUESTIONS: dict[str, tuple[Callable[[], Answer[Any]], str]] = {
    "plan": (
        lambda: specmargin.plan(MOE, gpu="h200", gpus=2, batch=[1, 64], acceptance="0.7"),
        f"{MOE} --gpu h200 --gpus 2 --batch 1,64 --acceptance 0.7",
    ),
    "plan, everything by default": (lambda: specmargin.plan(MOE, gpu="h200"), f"{MOE} --gpu h200"),
    "plan, compared and by context": (
        lambda: specmargin.plan(MOE, gpu="h200", batch=8, contexts="1k,8k", compare="datasheet", gpu_hour_price=2),
        f"{MOE} --gpu h200 --batch 8 --contexts 1k,8k --compare datasheet --gpu-hour-price 2",
    ),
    "price": (lambda: specmargin.price(MOE, gpu="h200", batch=8, depth=3), f"{MOE} --gpu h200 --batch 8 --depth 3"),
    "coverage": (lambda: specmargin.coverage(MOE, positions="1,8"), f"{MOE} --positions 1,8"),
    "coverage, priced": (lambda: specmargin.coverage(MOE, gpu="h200"), f"{MOE} --gpu h200"),
    "duel": (lambda: specmargin.duel("qwen3-8b", gpu="h100", alpha=0.9), "qwen3-8b --gpu h100 --alpha 0.9"),
    "simulate": (
        lambda: specmargin.simulate(MOE, gpu="h200", prices="datasheet", **_LOAD),
        f"{MOE} --gpu h200 --prices datasheet --qps 4 --requests 8 --osl 20 --isl 1k --policy fixed:2,none",
    ),
}
_ANSWERS: dict[str, Answer[Any]] = {}


def answer(name: str) -> Answer[Any]:
    """Each question is asked once."""
    if name not in _ANSWERS:
        _ANSWERS[name] = QUESTIONS[name][0]()
    return _ANSWERS[name]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_answer_as_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, options = name.split(",", maxsplit=1)[0], QUESTIONS[name][1]
    assert run(verb, [*options.split(), "--json"]) == 0
    assert json.loads(json.dumps(answer(name).to_dict())) == json.loads(capsys.readouterr().out)


def test_a_sweep_is_that_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text(TOML)
    _ANSWERS["sweep"] = specmargin.sweep(GRID)
    assert run("sweep", [str(tmp_path / "grid.toml"), "--workers", "1", "--json"]) == 0
    theirs, ours = json.loads(capsys.readouterr().out), json.loads(json.dumps(_ANSWERS["sweep"].to_dict()))
    assert ours["rows"] == theirs["rows"]
    assert ours.keys() == theirs.keys()
    again = specmargin.sweep(tmp_path / "grid.toml", output=tmp_path / "grid.jsonl")
    assert again.to_dict()["ran"] == 0


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_says_how_it_was_made(name: str) -> None:
    """Release, every option with the value that was used, and the survival curve where it matters."""
    values = answer(name).to_dict()
    assert values["version"] == specmargin.__version__
    unknown = {field for field, value in values["options"].items() if value is None}
    assert "prices" not in unknown or name == "coverage"
    verb = name.split(",", maxsplit=1)[0]
    assert ("survival" in values) == (verb in ("plan", "simulate"))
    if verb == "plan":
        assert values["options"]["drafter"] == "mtp"
        assert values["options"]["step_ms"] > 0
        assert values["survival"] == sorted(values["survival"], reverse=True)
        assert values["options"]["batch"] == [row["batch"] for row in values["rows"]]


@pytest.mark.parametrize("name", QUESTIONS)
def test_frames_plots_and_notebooks(name: str) -> None:
    result = answer(name)
    frame = result.to_frame()
    assert frame.height == len(result.rows)
    assert isinstance(result.plot(), alt.TopLevelMixin)
    shown = result._repr_html_()
    assert "<table>" in shown
    assert str(result).split(".")[0][:20] in shown.replace("&#x27;", "'")
    assert result.verdict == str(result)


def test_flags_of_another_engine() -> None:
    result = specmargin.plan(MOE, gpu="h200", batch=8, prices="laws")
    assert "num_speculative_tokens" in result.flags()
    assert "--speculative" in result.flags("sglang")
    assert result.flags("sglang") != result.flags()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"gpu": "h200", "bacth": 3}, "bacth"), ({}, "gpu"), ({"gpu": "h200", "depth": -1}, "depth")],
)
def test_a_bad_option_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        specmargin.plan(MOE, **options)


def test_the_notebook_runs() -> None:
    """Its cells in order, in one namespace; the last expression of a cell must have a view, as Jupyter shows it."""
    notebook = json.loads((ROOT / "examples" / "python.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    shown = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "commit the notebook without outputs"
        *lines, last = "".join(cell["source"]).rsplit("\n", 1)
        before = "\n".join(lines)
        try:
            expression = compile(last, "python.ipynb", "eval")
        except SyntaxError:  # the cell ends in a statement
            exec(compile(f"{before}\n{last}", "python.ipynb", "exec"), names)
            continue
        exec(compile(before, "python.ipynb", "exec"), names)
        value = eval(expression, names)
        shown += value is None or isinstance(value, str) or hasattr(value, "_repr_html_") or hasattr(value, "to_dict")
    assert shown >= 9
