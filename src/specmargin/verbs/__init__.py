"""The verbs, one module each: request, function, answer. The list of verbs is the list of files in this folder.

`duel.py` holds the function `duel`, decorated with `answers.verb.verb`; `profile_routing.py` is `profile routing`. The
module's docstring is the verb's help page, and its first line the summary that `specmargin --help` prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specmargin.answers.verb import Verb

#: The order in which help lists verbs; others follow by name.
_FIRST = ("plan", "price", "coverage", "duel", "design", "simulate", "sweep")
_FOLDER = Path(__file__).parent


@cache
def verb_names() -> tuple[str, ...]:
    """As they are typed: `profile routing`."""
    files = [path for path in _FOLDER.iterdir() if path.name[0] not in "._"]
    names = {path.stem.replace("_", " ") for path in files if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return (*(name for name in _FIRST if name in names), *sorted(names - set(_FIRST)))


def summary(name: str) -> str:
    """The first line of the verb's help, read without importing it."""
    stem = name.replace(" ", "_")
    file = _FOLDER / f"{stem}.py"
    with (file if file.is_file() else _FOLDER / stem / "__init__.py").open(encoding="utf-8") as lines:
        return next(lines).strip().strip('"')


def find_verb(name: str) -> Verb[Any, Any]:
    stem = name.replace(" ", "_")
    found: Verb[Any, Any] = getattr(import_module(f"specmargin.verbs.{stem}"), stem)
    return found


def split_verb(words: Iterable[str]) -> tuple[str, list[str]]:
    """The verb that these words begin with, and the rest; an empty name where they begin with none."""
    first, *rest = [*words, ""]
    pair = f"{first} {rest[0]}" if rest else first
    if pair in verb_names():
        return pair, rest[1:-1]
    return (first, rest[:-1]) if first in verb_names() else ("", [first, *rest][:-1])
