"""The report: one HTML file without scripts or network requests, light or dark by the reader's setting."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from specmargin._version import __version__
from specmargin.answers.command_line import command_line
from specmargin.show.explorer import story
from specmargin.show.explorer.choices import next_tokens
from specmargin.show.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.show.explorer.view import View
from specmargin.show.explorer.words import bottleneck
from specmargin.show.figures.figure import Figure
from specmargin.show.figures.svg import drawers
from specmargin.show.figures.theme import DARK, DARK_OF, LIGHT, PAIRED

_COLUMNS = {
    "batch": ("batch", "{:,}"),
    "depth": ("draft", "{}"),
    "speedup": ("speed-up", "{:.2f}×"),
    "better": ("better", "{}"),
    "goodput_tokens_per_second": ("tok/s", "{:,.0f}"),
    "no_spec_tokens_per_second": ("plain", "{:,.0f}"),
    "tpot_seconds": ("ms/token", "{:.2f}"),
    "needed": ("needs", "{}"),
    "survival": ("has", "{:.2f}"),
    "break_even_acceptance": ("break-even", "{:.2f}"),
    "distinct_experts": ("experts", "{:.0f}"),
    "bound_by": ("bottleneck", "{}"),
}
_SCALES = ('"heatmap"', '"diverging"')  # between the colours of a scale, no style sheet can tell dark from light
# The first simulation loads compiled code, for which other Python code need not wait: it has a thread of its own, and
# the figure that needs the same code comes last.
_LOADS, _WAITS = "day", "policies"
_ORDER = sorted(GALLERY, key=lambda name: (name != _LOADS, name == _WAITS, GALLERY[name].slow))
_Drawing = tuple[Figure, Future[str], Future[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a report comes from."""

    made: datetime
    link: str = ""  # to the same scenario on the page that wrote the report


def page(view: View, origin: Origin, *, advance: Callable[[], None] = lambda: None) -> str:
    """The whole document. `advance` is called after each figure, in any thread."""
    drawers()  # they start while the first figures are computed
    paragraphs = story.paragraphs(view)
    drawn = _figures(view, advance)
    plan = view.plan
    parts = [
        f"<h1>{_text(plan['model'])} on {_text(plan['gpu'])}</h1>",
        f'<p class="verdict">{_text(plan["verdict"])}</p>',
        _facts(view),
        _flags(plan, view.answer.engine.title),
        _table(view),
        f"<h2>{story.TITLE}</h2><p>{_text(story.LEAD)}</p>",
        *(
            f"<section><h3>{_text(p.heading)}</h3><p>{_text(p.text)}</p>{drawn.pop(p.figure, '')}</section>"
            for p in paragraphs
        ),
        "<h2>More figures</h2>",
        *drawn.values(),
        _sources(plan["sources"]),
        _footer(view, origin),
    ]
    return _DOCUMENT.format(
        title=_text(f"{plan['model']} on {plan['gpu']}: does speculation pay?"), style=_style(), body="\n".join(parts)
    )


def _figures(view: View, advance: Callable[[], None]) -> dict[str, str]:
    """Every figure that applies, by name. Figures are computed here while others are drawn in other processes."""
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="figure") as threads:
        begun = dict(zip(_ORDER, threads.map(lambda name: _begun(name, view, advance), _ORDER), strict=True))
        drawings = ((name, begun[name]) for name in GALLERY)
        return {name: "" if drawing is None else _drawn(*drawing) for name, drawing in drawings}


def _begun(name: str, view: View, advance: Callable[[], None]) -> _Drawing | None:
    """A figure, and its drawings: one for both themes, or one for each if it has a continuous scale of colours."""
    try:
        shown = figure(name, view)
    except DoesNotApplyError:
        advance()
        return None
    draw = drawers().draw
    if any(scale in json.dumps(shown.structure) for scale in _SCALES):
        return shown, draw(shown.drawing(LIGHT)), draw(shown.drawing(DARK), drawn=advance)
    return shown, draw(shown.drawing(PAIRED), drawn=advance), None


def _drawn(shown: Figure, light: Future[str], dark: Future[str] | None) -> str:
    if dark is None:
        drawings = f'<div class="both">{_svg(light.result(), f"{shown.name}-")}</div>'
    else:
        drawings = "".join(
            f'<div class="{theme}">{_svg(drawing.result(), f"{shown.name}-{theme}-")}</div>'
            for theme, drawing in (("light", light), ("dark", dark))
        )
    label = _text(f"{shown.title}. {shown.takeaway}")
    return (
        f"<figure><h4>{_text(shown.title)}</h4><p>{_text(shown.takeaway)}</p>"
        f'<div class="drawing" role="img" aria-label="{label}">{drawings}</div>'
        f"<figcaption>Source: {_text(shown.source)}</figcaption></figure>"
    )


def _svg(text: str, prefix: str) -> str:
    """Ids get a prefix per drawing, because drawings in one page must not share them."""
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', text)


def _footer(view: View, origin: Origin) -> str:
    command = command_line("report", view.request)
    for upload in (view.bank, view.routing_file):
        command = command if upload is None else command.replace(str(upload.path), upload.name)
    when = origin.made.strftime("%Y-%m-%d %H:%M UTC")
    link = f'<p>Live page: <a href="{_text(origin.link)}">{_text(origin.link)}</a></p>' if origin.link else ""
    return (
        f"<footer><p>Specmargin {__version__}, {when}. All numbers are from the cost model of "
        f"<code>specmargin plan</code>. To write this report again:</p><pre>{_text(command)} -o report.html</pre>{link}"
        "</footer>"
    )


def _facts(view: View) -> str:
    plan = view.plan
    facts = {
        "GPUs": f"{plan['gpus']} × {plan['gpu']} ({plan['parallel']})",
        "engine": plan["engine"],
        "drafter": plan["drafter"],
        "context": f"{plan['context']:,.0f} tokens",
        "weights": plan["weights"],
        "KV cache": plan["kv_cache"],
        "prices": plan["prices"],
        "routing": plan["routing"] or "dense",
    }
    return "<dl>" + "".join(f"<div><dt>{k}</dt><dd>{_text(v)}</dd></div>" for k, v in facts.items()) + "</dl>"


def _flags(plan: dict[str, Any], engine: str) -> str:
    text = "\n".join(part for part in (plan["config"], plan["config_file"]) if part)
    needs = [f"for {plan['config_needs']}"] if plan["config_needs"] else []
    notes = "".join(f"<li>{_text(note)}</li>" for note in (*needs, *plan["config_notes"]))
    if text:
        shown = f"<pre>{_text(text)}</pre>"
    elif plan["config_supported"]:
        shown = "<p>Nothing to configure: leave speculation disabled.</p>"
    else:
        shown = "<p>No engine supports this drafter yet.</p>"
    return f"<h2>For {_text(engine)}</h2>{shown}<ul>{notes}</ul>"


def _table(view: View) -> str:
    """The rows of the plan; on narrow screens each row is a block of named values."""
    plan, next_token = view.plan, next_tokens(view)
    head = "".join(f'<th scope="col">{name}</th>' for name, _ in _COLUMNS.values())
    body = "".join(
        f"<tr{'' if row['fits'] else ' class=unfit'}>{''.join(_cells(row, needs))}</tr>"
        for row, needs in zip(plan["rows"], next_token, strict=False)
    )
    notes = [
        "Plain: without speculation. Needs, has: the survival that one more draft token needs to pay, and its own. "
        "Break-even: the per-token acceptance at which this depth equals no speculation. Experts: per layer and GPU."
    ]
    if not all(row["fits"] for row in plan["rows"]):
        notes.append(
            f"In parentheses: does not fit in memory ({plan['largest_batch']:,} sequences fit with these flags, "
            f"{plan['no_spec_largest_batch']:,} without speculation)."
        )
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p class="note">{" ".join(notes)}</p>'


def _cells(row: dict[str, Any], next_token: dict[str, Any]) -> Iterator[str]:
    depth, needed = row["better_depth"], next_token["needed"]
    shown = row | {
        "bound_by": bottleneck(row["bound_by"]),
        "tpot_seconds": row["tpot_seconds"] * 1e3,  # in milliseconds, as its column says
        "better": "" if depth is None else f"{depth or 'none'}: {row['better_speedup']:.2f}×",
        "needed": next_token["note"] if needed is None else f"{needed:.2f}",
        "survival": next_token["survival"],
    }
    for key, (name, form) in _COLUMNS.items():
        text = "–" if shown[key] in (None, "") else form.format(shown[key])
        if key == "depth" and not row["fits"]:
            text = f"({text})"
        yield f'<td data-name="{name}">{_text(text)}</td>'


def _sources(sources: dict[str, str]) -> str:
    rows = "".join(f"<li><b>{_text(name)}</b>: {_text(source)}</li>" for name, source in sources.items())
    return f"<h2>Sources</h2><ul>{rows}</ul>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _style() -> str:
    """Dark drawings are light ones with other colours; the few that are drawn twice are switched."""
    dark = "".join(
        f'.both [{attribute}="{light}"]{{{attribute}:{other}}}'
        for light, other in DARK_OF.items()
        for attribute in ("fill", "stroke")
    )
    return (
        f":root{{--paper:{LIGHT.paper};--ink:{LIGHT.ink};--quiet:{LIGHT.quiet};--faint:{LIGHT.faint}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{--paper:{DARK.paper};--ink:{DARK.ink};"
        f"--quiet:{DARK.quiet};--faint:{DARK.faint}}}.light{{display:none}}.dark{{display:block!important}}{dark}}}"
        + _RULES
    )


_RULES = """
.dark{display:none}
body{background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,sans-serif}
body{max-width:50rem;margin:3rem auto;padding:0 1.2rem;overflow-wrap:break-word}
h1{font-size:1.9rem;line-height:1.2}h2{margin-top:3rem}.verdict{font-size:1.15rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem 1.2rem}
dt{color:var(--quiet);font-size:.8rem}dd{margin:0}
pre{background:color-mix(in srgb,var(--ink) 6%,transparent);padding:1rem;overflow-x:auto}
pre{border-radius:6px;font-size:.85rem;white-space:pre-wrap}
table{border-collapse:collapse;font-size:.8rem;width:100%}
th,td{text-align:right;padding:.35rem .3rem;border-bottom:1px solid var(--faint);vertical-align:top}
th,td{white-space:nowrap}th{color:var(--quiet);font-weight:500}
th:last-child,td:last-child{text-align:left;white-space:normal}
.unfit td{color:var(--quiet)}.note{color:var(--quiet);font-size:.85rem}
figure{margin:2.5rem 0}h4{margin:0;font-size:1.05rem}figure p{margin:.2rem 0 .6rem;font-size:.9rem}
figure p,figcaption{color:var(--quiet)}figcaption{font-size:.8rem}
.drawing svg{display:block;width:100%;max-width:44rem;height:auto}
footer,ul{color:var(--quiet);font-size:.85rem}footer{margin:3rem 0}footer a{color:inherit}
@media(max-width:50rem){
body{margin:1.5rem auto}h1{font-size:1.5rem}
thead{display:none}table,tbody,tr,td{display:block}
tr{padding:.6rem 0;border-bottom:1px solid var(--faint);display:grid;grid-template-columns:1fr 1fr;gap:0 1.4rem}
td,td:last-child{border:0;padding:.05rem 0;display:flex;justify-content:space-between;text-align:right;gap:.8rem}
td:last-child{grid-column:1/3}td::before{content:attr(data-name);color:var(--quiet);text-align:left}
}
@media print{.light{display:block!important}.dark{display:none!important}}
"""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
