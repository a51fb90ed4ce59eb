"""The preview card: what a link shows where it is pasted. 1200 × 630 pixels, the size that sites crop to."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1200, 630
_SCALE = 2 / 3  # 800 × 420 pixels: half the bytes, and as sharp as previews are shown
_INK, _QUIET, _PAPER, _ACCENT, _FAINT = "#1c2733", "#55626f", "#f6f7f9", "#14315f", "#d5dce3"
_PALE = "#8ea3c4"  # bars of batches that are not asked about
_LEFT, _BOTTOM, _TALL = 90, 545, 140
_CHARACTERS = 56  # of a line of the answer


class CardRow(NamedTuple):
    """One batch of a plan."""

    batch: int
    depth: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The question (`model`, and `scenario`: where and at which load), and its answer: a line, and a bar per batch."""

    model: str
    scenario: str
    line: str
    rows: Sequence[CardRow] = ()
    marked: int | None = None  # the batch that is asked about


def meta_tags(title: str, text: str, image: str, url: str | None = None) -> str:
    """Open Graph, and what Twitter and search engines read besides it."""
    card = {
        "og:type": "website",
        "og:title": title,
        "og:description": text,
        "og:image": image,
        "og:image:width": str(WIDTH),
        "og:image:height": str(HEIGHT),
    } | ({} if url is None else {"og:url": url})
    tags = [f'<meta property="{name}" content="{html.escape(value)}">' for name, value in card.items()]
    tags += [
        '<meta name="twitter:card" content="summary_large_image">',
        f'<meta name="description" content="{html.escape(text)}">',
    ]
    return "\n".join(tags)


def retitled(page: str, title: str, tags: str) -> str:
    """A page with another title, followed by tags."""
    start, end = page.index("<title>"), page.index("</title>") + len("</title>")
    return f"{page[:start]}<title>{html.escape(title)}</title>\n{tags}{page[end:]}"


def card_svg(card: Card) -> str:
    answer = wrap(card.line, _CHARACTERS, max_lines=2, placeholder=" …")
    lines = (_text(_LEFT, 285 + 42 * i, 34, line, _ACCENT, bold=True) for i, line in enumerate(answer))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{_PAPER}"/>'
        f"{_text(_LEFT, 85, 34, 'Specmargin: does speculation pay?', _QUIET)}"
        f"{_text(_LEFT, 160, 64 if len(card.model) <= 26 else 44, card.model[:44], _INK, bold=True)}"
        f"{_text(_LEFT, 216, 32, card.scenario[:68], _QUIET)}"
        f"{''.join(lines)}{''.join(_bars(card))}</svg>"
    )


def _bars(card: Card) -> list[str]:
    most = max([2.0, *(row.speedup for row in card.rows)])
    step = (WIDTH - 2 * _LEFT) / max(len(card.rows), 5)
    parts = [_rectangle(_LEFT, _BOTTOM - _TALL / most, WIDTH - 2 * _LEFT, 2, _FAINT)] if card.rows else []
    for i, (batch, depth, speedup) in enumerate(card.rows):
        x, tall, marked = _LEFT + i * step, _TALL * speedup / most, card.marked in (batch, None)
        colour = _FAINT if depth == 0 else _ACCENT if marked else _PALE
        middle, here = x + step / 2 - 7, card.marked == batch
        parts.append(
            _rectangle(x, _BOTTOM - tall, step - 14, tall, colour)
            + _text(middle, _BOTTOM - tall - 10, 22, f"{speedup:.2f}×", _INK, bold=here, middle=True)
            + _text(middle, _BOTTOM + 32, 20, f"batch {batch}", _INK if here else _QUIET, bold=here, middle=True)
            + _text(middle, _BOTTOM + 60, 20, f"draft {depth}" if depth else "off", _QUIET, middle=True)
        )
    return parts


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" fill="{colour}"/>'


def _text(x: float, y: float, size: int, text: str, colour: str, *, bold: bool = False, middle: bool = False) -> str:
    weight, anchor = ("bold" if bold else "normal"), ("middle" if middle else "start")
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-family="Arial, sans-serif" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


def card_png(card: Card) -> bytes:
    import vl_convert  # noqa: PLC0415 (an extra)

    return bytes(vl_convert.svg_to_png(card_svg(card), scale=_SCALE))
