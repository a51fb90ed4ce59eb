"""The verbs, one module each: request, function, answer. The list of verbs is the list of files in this folder.

`duel.py` holds the function `duel`, decorated with `answers.verb.verb`; `profile_routing.py` is `profile routing`, and
a name in `_HYPHENATED` is one word. The
module's docstring is the verb's help page, and its first line the summary that `specmargin --help` prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specmargin.answers.verb import Verb

_HYPHENATED = ("live_check",)
#: The order in which help lists verbs; others follow by name.
_FIRST = ("plan", "price", "coverage", "duel", "design", "simulate", "sweep")


@cache
def verb_names() -> tuple[str, ...]:
    """As they are typed: `profile routing`."""
    names = {typed_name(name) for _, name, _ in iter_modules(__path__)}
    return (*(name for name in _FIRST if name in names), *sorted(names - set(_FIRST)))


def typed_name(stem: str) -> str:
    """Of a module or function in Python."""
    return stem.replace("_", "-" if stem in _HYPHENATED else " ")


def _stem(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


def summary(name: str) -> str:
    """The first paragraph of the verb's help, read without importing it."""
    stem = _stem(name)
    files = [Path(folder) / part for folder in __path__ for part in (f"{stem}.py", f"{stem}/__init__.py")]
    text = next(file for file in files if file.is_file()).read_text(encoding="utf-8")
    return text.split("\n\n", 1)[0].replace("\n", " ").strip('" ')


def find_verb(name: str) -> Verb[Any, Any]:
    stem = _stem(name)
    found: Verb[Any, Any] = getattr(import_module(f"specmargin.verbs.{stem}"), stem)
    return found


def split_verb(words: Iterable[str]) -> tuple[str, list[str]]:
    """The verb that these words begin with, and the rest; an empty name where they begin with none."""
    first, *rest = [*words, ""]
    pair = f"{first} {rest[0]}" if rest else first
    if pair in verb_names():
        return pair, rest[1:-1]
    return (first, rest[:-1]) if first in verb_names() else ("", [first, *rest][:-1])
