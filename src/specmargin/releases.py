"""Releases of engines: read from text, compared, and named beside the settings that are for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from specmargin.errors import CatalogError

_FORM = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:(?:\.?post\d+)|rc(\d+)(?:\.post\d+)?)?(?:\+([a-z0-9.]+))?")
_FINAL = 10**6  # a final release comes after its candidates


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Release:
    """`1.3.0rc8`, `0.5.23`, `v0.32`. Repackaged releases (`.post1`) count as what they repackage.

    `build`: somebody's own, with other kernels than the release that it left (`0.20.2+rtx6kpro`).
    """

    numbers: tuple[int, int, int]
    candidate: int = _FINAL
    text: str = field(compare=False)
    build: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text


def parse_release(text: str) -> Release | None:
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        return None
    numbers = (int(match[1]), int(match[2]), int(match[3] or 0))
    candidate = _FINAL if match[4] is None else int(match[4])
    return Release(numbers=numbers, candidate=candidate, text=text.strip(), build=match[5] or "")


def release(text: str) -> Release:
    """A release that this code names."""
    parsed = parse_release(text)
    if parsed is None:
        raise CatalogError(f"{text!r} is not a release")
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """The releases of an engine whose rules are known."""

    title: str
    first: str  # with a setting that can be written
    last: str  # read; later ones are taken to be like it

    def find(self, text: str) -> Release:
        """The release that `--engine-version` names."""
        found = parse_release(text)
        if found is None:
            raise CatalogError(f"--engine-version {text!r} is not a release of {self.title} such as {self.last}")
        if found < release(self.first):
            raise CatalogError(
                f"--engine-version {text}: settings are written for {self.title} {self.first} or later; "
                "earlier releases take one depth or none"
            )
        return found

    def needs(self, chosen: Release | None, since: str, *, what: str) -> str:
        """The release beside a setting that exists `since` then, for the chosen release or any."""
        if chosen is None:
            return f"{self.title} {since} or later"
        if chosen < release(since):
            raise CatalogError(f"{self.title} {chosen} has no {what}: {since} is the first release with it")
        unread = f", as read in {self.last}" if chosen > release(self.last) else ""
        return f"{self.title} {chosen}{unread}"
