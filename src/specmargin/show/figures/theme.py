"""One theme for all figures, light and dark: `theme.json` is the configuration of Vega-Lite, with the styles of marks.

Charts themselves name no colours. Series differ in lightness as well as in hue, so that they are distinguishable in
greyscale and for colour-blind readers; lines are labelled at their ends, and dashes repeat the colour coding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

NO_SPECULATION = "no speculation"
#: One colour per drafter in every figure: the place in this list is the place in `Theme.series`.
DRAFTERS = ("mtp", "eagle", "dflash", "dspark", "ssd", NO_SPECULATION, "ngram", "model", "free")
#: One colour per policy, likewise; `fixed` is any fixed depth.
POLICIES = (
    "gate",
    "controller",
    "schedule",
    "vllm-adaptive",
    "sglang",
    "none",
    "turbospec",
    "one-width",
    "fixed",
    "oracle",
    "off",
    "cascade",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    name: str
    paper: str
    ink: str
    quiet: str  # secondary: subtitles, axes, fixed depths
    faint: str  # grid lines
    accent: str
    series: tuple[str, ...]
    heat: tuple[str, ...]  # low to high
    sides: tuple[str, ...]  # first ahead, even, second ahead
    on_low: str  # text on the low colours of `heat`
    on_high: str


# For figures of many policies, beyond the six that most figures need.
_MORE_LIGHT = ("#4f7fbf", "#d98a6a", "#43a08f", "#5e3a87", "#b9c0c7", "#7a5a12")
_MORE_DARK = ("#5f8fd0", "#c4643a", "#1f8f7c", "#8d6fc4", "#59636d", "#b8923f")

LIGHT = Theme(
    name="light",
    paper="#ffffff",
    ink="#1c2733",
    quiet="#5b6875",
    faint="#e3e7eb",
    accent="#b3380f",
    series=("#14315f", "#b3380f", "#168a7d", "#8a63b8", "#cf8f12", "#8b959f", *_MORE_LIGHT),
    heat=("#f2f5f8", "#c7d9ea", "#8fb6d8", "#2f6496", "#14315f"),
    sides=("#b3380f", "#eebd9f", "#f4f4f2", "#9fd3cb", "#0f766a"),
    on_low="#1c2733",
    on_high="#ffffff",
)
DARK = Theme(
    name="dark",
    paper="#12181f",
    ink="#e6ebf0",
    quiet="#9aa7b4",
    faint="#2a343e",
    accent="#ff9a66",
    series=("#a9cbff", "#ff8f5a", "#3fbfa9", "#c4a3f2", "#ffd98a", "#7d8893", *_MORE_DARK),
    heat=("#1b242e", "#274462", "#3f719f", "#7fadd8", "#d3e5fb"),
    sides=("#ff8f5a", "#8a5238", "#262e36", "#2b6e64", "#3fbfa9"),
    on_low="#e6ebf0",
    on_high="#10161c",
)


def _told_apart(light: Theme, dark: Theme) -> tuple[Theme, dict[str, str]]:
    """The light theme with a colour of its own for every role, and the dark colour of each.

    A style sheet can then turn a light drawing into a dark one. Equal colours are moved apart by 1/255 of blue.
    """
    dark_of: dict[str, str] = {}

    def own(colour: str, other: str) -> str:
        while dark_of.get(colour, other) != other:
            blue = int(colour[5:], 16)
            colour = f"{colour[:5]}{blue - 1 if blue else 1:02x}"
        dark_of[colour] = other
        return colour

    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(Theme) if field.name != "name"):
        ours, theirs = getattr(light, name), getattr(dark, name)
        if isinstance(ours, tuple):
            changes[name] = tuple(own(*pair) for pair in zip(ours, theirs, strict=True))
        else:
            changes[name] = own(ours, theirs)
    return replace(light, **changes), dark_of


_OF_RANKS = {"vote": "controller", "best-fixed": "fixed", "each-rank": "oracle"}
#: For pages that draw once, in light: the theme, and the dark colour of each of its colours.
PAIRED, DARK_OF = _told_apart(LIGHT, DARK)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def drafter_colour(name: str) -> str:
    """The entry of `DRAFTERS` for a drafter's name, which may carry a detail: `model:qwen3-0.6b`."""
    return name.partition(":")[0]


def policy_colour(name: str) -> str:
    """The entry of `POLICIES` for a policy's name: `fixed` for `fixed:3`; of ranks, that of the policy most like it."""
    return _OF_RANKS.get(name, name.partition(":")[0])


def config(theme: Theme) -> dict[str, Any]:
    """The Vega-Lite configuration of a theme."""
    coloured: dict[str, Any] = _coloured(_template(), theme)
    return coloured


def _coloured(part: Any, theme: Theme) -> Any:
    """`$ink` is that colour of the theme, `$series.1` its second one, `$heat` all of them."""
    if isinstance(part, dict):
        return {name: _coloured(value, theme) for name, value in part.items()}
    if not isinstance(part, str) or not part.startswith("$"):
        return part
    role, _, place = part[1:].partition(".")
    colours = getattr(theme, role)
    return colours[int(place)] if place else list(colours) if isinstance(colours, tuple) else colours


@cache
def _template() -> dict[str, Any]:
    """`text` has no fontSize, which Vega-Lite would prefer to that of a style; small screens leave out `aside`."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("theme.json").read_text(encoding="utf-8"))
    return found
