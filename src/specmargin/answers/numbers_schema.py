"""Numbers as users write them: 64k, 1,2,4-8, and lists of shares."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator

MAX_CONTEXT = 1 << 24
_MOST_DIGITS = 4000  # of a number that Python reads


def parse_number(given: object) -> object:
    """`64k` is 65536; k and m mean 1024 and 1,048,576. Values that are not text are returned unchanged."""
    if not isinstance(given, str):
        return given
    match = re.fullmatch(r"\s*(-?[0-9]+)([km]?)\s*", given.lower())
    if match is None:
        raise ValueError(f"{given!r} is not a whole number such as 512 or 8k")
    if len(match.group(1)) > _MOST_DIGITS:
        raise ValueError(f"{given.strip()} is too large")
    return int(match.group(1)) * {"": 1, "k": 1024, "m": 1_048_576}[match.group(2)]


def parse_numbers(given: object, most: int = 4096, largest: int = MAX_CONTEXT) -> object:
    """`1,2,4`, `1-8` or `1,4-6,32`; one number, or a list of them."""
    if isinstance(given, int):
        return (given,)
    if not isinstance(given, str):
        return given
    values: set[int] = set()
    for part in given.split(","):
        low, dash, high = part.strip().partition("-") if not part.strip().startswith("-") else (part, "", "")
        try:
            first, last = (int(str(parse_number(end))) for end in ((low, high) if dash else (low, low)))
        except ValueError:
            raise ValueError(f"{part!r} is neither a number nor a range such as 1-8") from None
        if last < first:
            raise ValueError(f"the range {part!r} is empty")
        if last > largest:
            raise ValueError(f"{last} is too large; at most {largest:,}")
        if last - first >= most or len(values) >= most:
            raise ValueError(f"at most {most} values, {given!r} has more")
        values.update(range(first, last + 1))
    return tuple(sorted(values))


def listed(most: int) -> BeforeValidator:
    """A list of at most `most` numbers."""
    return BeforeValidator(partial(parse_numbers, most=most))


def parse_shares(given: object) -> object:
    """`0,0.25,0.5`, or a list of numbers."""
    if not isinstance(given, str):
        return given
    try:
        return tuple(sorted({float(part) for part in given.split(",")}))
    except ValueError:
        raise ValueError(f"{given!r} is not a list of shares such as 0,0.25,0.5") from None


#: After `Field`, so that limits are those of the number and not of its text.
NUMBER = BeforeValidator(parse_number)
Numbers = Annotated[tuple[int, ...], BeforeValidator(parse_numbers)]
