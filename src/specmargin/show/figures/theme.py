"""One theme for all figures, light and dark, as Vega-Lite configuration: charts themselves name no colours.

Series differ in lightness as well as in hue, so that they are distinguishable in greyscale and for colour-blind
readers; lines are labelled at their ends, and dashes repeat the colour coding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
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

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


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


#: For pages that draw once, in light: the theme, and the dark colour of each of its colours.
PAIRED, DARK_OF = _told_apart(LIGHT, DARK)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def drafter_colour(name: str) -> str:
    """The entry of `DRAFTERS` for a drafter's name, which may carry a detail: `model:qwen3-0.6b`."""
    return name.partition(":")[0]


def policy_colour(name: str) -> str:
    """The entry of `POLICIES` for a policy's name: `fixed` for `fixed:3`."""
    return name.partition(":")[0]


def config(theme: Theme) -> dict[str, Any]:
    """The Vega-Lite configuration of a theme."""
    return {
        "background": theme.paper,
        "font": FONT,
        "padding": 8,
        "view": {"stroke": None},
        "axis": _axis(theme),
        "legend": {
            "labelColor": theme.ink,
            "titleColor": theme.quiet,
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "titleFontSize": 12,
        },
        "title": {
            "color": theme.ink,
            "subtitleColor": theme.quiet,
            "fontSize": 16,
            "fontWeight": 600,
            "subtitleFontSize": 12,
            "subtitleLineHeight": 17,
            "anchor": "start",
            "frame": "group",
            "offset": 14,
            "subtitlePadding": 6,
        },
        "header": {"labelColor": theme.ink, "titleColor": theme.quiet, "labelFontSize": 12},
        "range": {
            "category": list(theme.series),
            "heatmap": list(theme.heat),
            "ramp": list(theme.heat),
            "diverging": list(theme.sides),
            "ordinal": list(theme.heat),
        },
        "mark": {"color": theme.series[0]},
        "line": {"strokeWidth": 2.2},
        "rule": {"color": theme.quiet},
        "point": {"filled": True, "size": 36, "opacity": 1},
        "rect": {"stroke": theme.paper, "strokeWidth": 1.5},
        "bar": {"stroke": theme.paper, "strokeWidth": 0.5},
        "text": {"color": theme.ink},  # no fontSize: Vega-Lite would prefer it to that of the styles
        "style": _styles(theme),
    }


def _axis(theme: Theme) -> dict[str, Any]:
    return {
        "labelColor": theme.quiet,
        "titleColor": theme.ink,
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 11,
        "titlePadding": 10,
        "gridColor": theme.faint,
        "domainColor": theme.quiet,
        "tickColor": theme.quiet,
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "labelOverlap": "greedy",
        "labelSeparation": 4,
    }


def _styles(theme: Theme) -> dict[str, Any]:
    """Named mark styles."""
    return {
        "label": {"fontSize": 12, "align": "left", "baseline": "middle", "dx": 7},
        "label-halo": {
            "fontSize": 12,
            "align": "left",
            "baseline": "middle",
            "dx": 7,
            "fill": theme.paper,
            "stroke": theme.paper,
            "strokeWidth": 3.5,
            "strokeJoin": "round",
            "opacity": 0.8,
        },
        "note": {"fontSize": 11, "color": theme.quiet, "fill": theme.quiet},
        "source": {"fontSize": 10.5, "color": theme.quiet, "fill": theme.quiet, "align": "left", "baseline": "top"},
        "ridge-label": {"fontSize": 11, "color": theme.quiet, "fill": theme.quiet},
        "ridge-halo": {"fontSize": 11, "stroke": theme.paper, "strokeWidth": 4, "strokeJoin": "round", "opacity": 0.7},
        "note-halo": {
            "fontSize": 11,
            "fill": theme.paper,
            "stroke": theme.paper,
            "strokeWidth": 4,
            "strokeJoin": "round",
            "opacity": 0.7,
        },
        "band-label": {"fontSize": 11, "color": theme.quiet, "fill": theme.quiet},
        "quiet-line": {"stroke": theme.quiet, "color": theme.quiet, "strokeWidth": 1, "opacity": 0.45},
        "reference": {"stroke": theme.quiet, "color": theme.quiet, "strokeWidth": 1, "strokeDash": [4, 3]},
        "marker": {"stroke": theme.accent, "color": theme.accent, "strokeWidth": 1.5, "strokeDash": [2, 3]},
        "marker-label": {"fill": theme.accent, "color": theme.accent, "fontSize": 11, "fontWeight": 600},
        "band": {"fill": theme.series[2], "color": theme.series[2], "opacity": 0.12},
        "limit": {"fill": theme.quiet, "color": theme.quiet, "opacity": 0.13, "stroke": None},
        "limit-edge": {"stroke": theme.quiet, "color": theme.quiet, "strokeWidth": 1},
        "limit-label": {
            "fontSize": 11,
            "fill": theme.quiet,
            "color": theme.quiet,
            "align": "right",
            "dx": -5,
            "dy": -4,
        },
        "no-spec-line": {"strokeWidth": 1.4, "strokeDash": [2, 3], "opacity": 0.85},
        "tax-band": {"fill": theme.series[1], "color": theme.series[1], "opacity": 0.10},
        "tick": {"color": theme.ink, "fill": theme.ink, "stroke": theme.paper, "strokeWidth": 0.7},
        "area-one": {"color": theme.series[0], "fill": theme.series[0], "opacity": 0.45},
        "area-quiet": {"color": theme.series[5], "fill": theme.series[5], "opacity": 0.4},
        "line-two": {"color": theme.series[1], "stroke": theme.series[1], "strokeWidth": 1, "strokeJoin": "round"},
        "line-three": {"color": theme.series[2], "stroke": theme.series[2], "strokeWidth": 1, "strokeJoin": "round"},
        "bar-one": {"fill": theme.series[0], "color": theme.series[0]},
        "bar-two": {"fill": theme.series[5], "color": theme.series[5]},
        "second-line": {"color": theme.series[1], "stroke": theme.series[1]},
        "second-point": {"color": theme.series[1], "fill": theme.series[1], "size": 36},
        "cell-low": {"fill": theme.on_low, "color": theme.on_low, "fontSize": 11},
        "cell-high": {"fill": theme.on_high, "color": theme.on_high, "fontSize": 11},
        "spread": {"fill": theme.series[0], "color": theme.series[0], "opacity": 0.16},
    }
