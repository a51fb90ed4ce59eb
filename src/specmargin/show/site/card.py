"""The preview card of a model: what a link shows where it is pasted. 1200 × 630 pixels, the size that sites crop to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1200, 630
_SCALE = 2 / 3  # 800 × 420 pixels: half the bytes, and as sharp as previews are shown
_INK, _QUIET, _PAPER, _ACCENT, _FAINT = "#1c2733", "#55626f", "#f6f7f9", "#14315f", "#d5dce3"
_LEFT, _BOTTOM, _TALL = 90, 545, 165


class CardRow(NamedTuple):
    """One batch of a plan; `low` to `high` is the 80% range of its speed-up."""

    batch: int
    depth: int
    speedup: float
    low: float
    high: float

    @property
    def gains(self) -> bool:
        return self.depth > 0 and self.speedup > 1


def headline(model: str, place: str, rows: Sequence[CardRow]) -> str:
    """`1.84× as fast at batch 1, 1.31× at 64 on 2 × h200`; no gain is promised where the range spans 1."""
    gains = [row for row in rows if row.gains]
    if not gains:
        return f"Speculation does not pay for {model} on {place}"
    first, last = gains[0], gains[-1]
    if first.low <= 1.0:
        sure = f"{first.low:.2f} to {first.high:.2f}× as fast at batch {first.batch}"
        return f"Uncertain whether speculation pays for {model} on {place}: {sure}"
    text = f"Speculation makes {model} {first.speedup:.2f}× as fast at batch {first.batch}"
    if last.batch != first.batch:
        text += f", {last.speedup:.2f}× at batch {last.batch}"
    return f"{text} on {place}"


def _line(rows: Sequence[CardRow]) -> str:
    first = next((row for row in rows if row.gains), None)
    if first is None:
        return "Speculation does not pay here"
    if first.low <= 1.0:
        return f"Uncertain: {first.low:.2f} to {first.high:.2f}× at batch {first.batch}"
    return f"{rows[0].speedup:.2f}× with speculation at batch {rows[0].batch}"


def card_svg(model: str, place: str, rows: Sequence[CardRow]) -> str:
    """The name, the first speed-up, and a bar per batch with its draft depth."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{_PAPER}"/>'
        f"{_text(_LEFT, 85, 34, 'Specmargin: where speculation pays', _QUIET)}"
        f"{_text(_LEFT, 165, 64 if len(model) <= 26 else 50, model, _INK, bold=True)}"
        f"{_text(_LEFT, 222, 36, f'on {place}', _QUIET)}"
        f"{_text(_LEFT, 290, 40, _line(rows), _ACCENT, bold=True)}"
        f"{''.join(_bars(rows))}</svg>"
    )


def _bars(rows: Sequence[CardRow]) -> list[str]:
    most = max([2.0, *(row.speedup for row in rows)])
    step = (WIDTH - 2 * _LEFT) / max(len(rows), 5)
    parts = [_rectangle(_LEFT, _BOTTOM - _TALL / most, WIDTH - 2 * _LEFT, 2, _FAINT)]
    for i, (batch, depth, speedup, *_) in enumerate(rows):
        x, tall = _LEFT + i * step, _TALL * speedup / most
        colour = _ACCENT if depth > 0 else _FAINT
        parts.append(
            _rectangle(x, _BOTTOM - tall, step - 14, tall, colour)
            + _text(x + step / 2 - 7, _BOTTOM - tall - 10, 22, f"{speedup:.2f}×", _INK, middle=True)
            + _text(x + step / 2 - 7, _BOTTOM + 32, 20, f"batch {batch}", _QUIET, middle=True)
            + _text(x + step / 2 - 7, _BOTTOM + 60, 20, f"draft {depth}" if depth else "off", _QUIET, middle=True)
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


def card_png(model: str, place: str, rows: Sequence[CardRow]) -> bytes:
    import vl_convert  # noqa: PLC0415 (an extra)

    return bytes(vl_convert.svg_to_png(card_svg(model, place, rows), scale=_SCALE))
