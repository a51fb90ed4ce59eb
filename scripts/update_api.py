"""Write src/specmargin/api.py: the verbs as Python functions, with an option per field of their requests (`make api`).

python scripts/update_api.py
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.verb import Verb
from specmargin.verbs import find_verb, verb_names

TARGET = Path(__file__).parent.parent / "src" / "specmargin" / "api.py"

_HEAD = '''"""The verbs as Python functions, with the options of the command line.

    import specmargin

    plan = specmargin.plan("qwen3.6-35b-a3b", gpu="h200")
    plan.to_frame()

`make api` (scripts/update_api.py) writes this file from the requests, so that editors complete options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from specmargin.answers.request_schema import read_request
from specmargin.verbs import find_verb

if TYPE_CHECKING:
'''

_SHARED_TEXT = '    """Options of every verb that takes a scenario."""'

_SWEEP = '''

def sweep(grid: str | Path | Mapping[str, Any], *, output: str | Path | None = None, workers: int = 1) -> SweepAnswer:
    """Simulate every cell of a grid: a TOML file as `specmargin sweep` takes it, or the same as a dictionary.

    `output`: the file of finished cells, which are not run again; without it nothing is kept. With several `workers`, a
    script needs the usual `if __name__ == "__main__":`, because they are processes.
    """
    from specmargin.verbs.sweep import SweepOutputs, SweepRequest, swept  # noqa: PLC0415

    given = dict(grid) if isinstance(grid, Mapping) else str(grid)
    request = read_request(SweepRequest, {"grid": given, "workers": workers})
    with TemporaryDirectory() as temporary:
        cells = Path(temporary) / "cells.jsonl" if output is None else Path(output)
        return swept(request, outputs=SweepOutputs(output=cells))
'''


def text() -> str:
    verbs = [verb for verb in map(find_verb, verb_names()) if _answers_a_scenario(verb)]
    lines = [f"    from {verb.function.__module__} import {', '.join(_answers(verb))}" for verb in verbs]
    lines = sorted([*lines, "    from specmargin.verbs.sweep import SweepAnswer"])
    shared = _shared(verbs)
    options = f"\n\nclass ScenarioOptions(TypedDict, total=False):\n{_SHARED_TEXT}\n\n{_indented(shared)}\n"
    functions = "".join(_function(verb, shared) for verb in verbs)
    return _formatted(_HEAD + "\n".join(lines) + "\n" + options + functions + _SWEEP)


def _answers_a_scenario(verb: Verb[Any, Any]) -> bool:
    """Others need no completion: they take a file, a name or an address. A verb that must write a file is for the
    command line."""
    writes = any(field.is_required() for field in verb.outputs.model_fields.values())
    request = verb.request
    return issubclass(request, ScenarioRequest) and request.model_fields["model"].is_required() and not writes


def _answers(verb: Verb[Any, Any]) -> list[str]:
    return str(inspect.signature(verb.function).return_annotation).split(" | ")


def _shared(verbs: Sequence[Verb[Any, Any]]) -> list[str]:
    """The fields that every verb takes, and takes alike."""
    first, *others = [list(_fields(verb)) for verb in verbs]
    return [line for line in first if all(line in fields for fields in others)]


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _function(verb: Verb[Any, Any], shared: Sequence[str]) -> str:
    options, answer = f"{verb.name.capitalize()}Options", " | ".join(_answers(verb))
    summary = verb.help.split("\n\n", 1)[0].replace("\n", " ")
    fields = _indented(line for line in _fields(verb) if line not in shared)
    return (
        f"\n\nclass {options}(ScenarioOptions, total=False):\n{fields}\n\n\n"
        f"def {verb.name}(model: str, **options: Unpack[{options}]) -> {answer}:\n"
        f'    """{summary}"""\n'
        f'    answer: {answer} = find_verb("{verb.name}").ask(model=model, **options)\n'
        "    return answer\n"
    )


def _fields(verb: Verb[Any, Any]) -> Iterator[str]:
    for name, field in verb.request.model_fields.items():
        if name != "model" and name not in verb.request.unused:
            kind = _kind(field)
            yield f"{name}: {f'Required[{kind}]' if field.is_required() else kind}"


def _kind(field: FieldInfo) -> str:
    """What Python users may give: the type of the field, and the text that a command line takes where it is parsed."""
    parsed = any(isinstance(entry, BeforeValidator) for entry in field.metadata)
    whole = get_origin(field.annotation) is tuple or not get_args(field.annotation)
    kinds = [field.annotation] if whole else [*get_args(field.annotation)]
    names = [_name(kind, parsed=parsed) for kind in kinds if kind is not NoneType]
    return " | ".join([*names, *(["None"] if NoneType in kinds else [])])


def _name(kind: Any, *, parsed: bool = False) -> str:
    if get_origin(kind) is tuple:
        number = get_args(kind)[0] in (int, float)
        return f"{'str | int | ' if parsed else ''}Sequence[{'float' if number else _name(get_args(kind)[0])}]"
    if get_origin(kind) is dict:
        return "Mapping[str, float]"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "int | str | Mapping[str, float]" if parsed else "Mapping[str, Any]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "str"
    return f"{kind.__name__} | str" if parsed else str(kind.__name__)


def _formatted(source: str) -> str:
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
