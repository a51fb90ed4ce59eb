"""Sentences as data: templates with slots, filled here and, for the static site, in the browser.

`{name}` and `{name:.2f}` stand for a value or for another phrase; `{name!}` stands for nothing, but needs a value. A
value is absent if it is None or False. A part in brackets is left out where a value of it is absent, and of several
templates the first is used that has all its values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]
Phrases = Mapping[str, Sequence[str]]  # templates by name

_SLOT = re.compile(r"\{([a-z_]+)(!|:[^}]*)?\}")
_OPTIONAL = re.compile(r"\[([^\]]*)\]")


def say(name: str, phrases: Phrases, values: Values) -> str | None:
    """The phrase; None where no template of it has all its values."""
    return next(iter(lines(name, phrases, values, most=1)), None)


def lines(name: str, phrases: Phrases, values: Values, *, most: int) -> list[str]:
    """The first templates of this name that have all their values, each text once."""
    texts: dict[str, None] = {}
    for template in phrases[name]:
        text = _filled(template, phrases, values)
        if text is not None:
            texts[text] = None
        if len(texts) == most:
            break
    return list(texts)


def listed(each: str, items: Sequence[Values], phrases: Phrases, *, between: str) -> str:
    """One phrase per item, which knows beside its values whether it is the `first`, `second`, `end` or `only` one."""
    count = len(items)
    places = [
        {"first": i == 0, "second": i == 1, "end": i == count - 1, "only": count == 1} | dict(item)
        for i, item in enumerate(items)
    ]
    return between.join(say(each, phrases, place) or "" for place in places)


def fill(template: str, values: Values) -> str:
    """A template of which every value is there; brackets are just brackets."""
    text = _plain(template, {}, values)
    if text is None:
        raise ValueError(f"a value of {template!r} is missing among {sorted(values)}")
    return text


def _filled(template: str, phrases: Phrases, values: Values) -> str | None:
    required, optional = _OPTIONAL.split(template)[::2], _OPTIONAL.findall(template)
    texts = [_plain(part, phrases, values) for part in required]
    if None in texts:
        return None
    extras = [_plain(part, phrases, values) or "" for part in optional]
    return "".join(str(text) + extra for text, extra in zip(texts, [*extras, ""], strict=True))


def _plain(part: str, phrases: Phrases, values: Values) -> str | None:
    found = {name: _value(name, phrases, values) for name, _ in _SLOT.findall(part)}
    if any(value is None or value is False for value in found.values()):
        return None

    def shown(slot: re.Match[str]) -> str:
        name, form = slot.groups(default="")
        return "" if form == "!" else format(found[name], form[1:])

    return _SLOT.sub(shown, part)


def _value(name: str, phrases: Phrases, values: Values) -> Any:
    return say(name, phrases, values) if name in phrases else values.get(name)
