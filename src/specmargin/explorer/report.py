"""The report: one HTML file without scripts or network requests, light or dark by the reader's setting."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from specmargin._version import __version__
from specmargin.explorer import story
from specmargin.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.explorer.view import View
from specmargin.figures.figure import Figure
from specmargin.figures.files import rendered
from specmargin.figures.theme import DARK, LIGHT, Theme

_COLUMNS = {
    "batch": ("batch", "{:,}"),
    "depth": ("draft", "{}"),
    "speedup": ("speed-up", "{:.2f}×"),
    "better": ("better", "{}"),
    "goodput_tokens_per_second": ("tokens/s", "{:,.0f}"),
    "no_spec_tokens_per_second": ("plain", "{:,.0f}"),
    "tpot_seconds": ("ms/token", "{:.2f}"),
    "hurdle": ("hurdle", "{}"),
    "break_even_acceptance": ("break-even", "{:.2f}"),
    "distinct_experts": ("experts/GPU", "{:.0f}"),
    "bound_by": ("bound by", "{}"),
}


def page(view: View, *, advance: Callable[[], None] = lambda: None) -> str:
    """The whole document. `advance` is called after each figure."""
    paragraphs = story.paragraphs(view)
    drawn = {name: _drawn(name, view, advance) for name in GALLERY}
    plan = view.plan
    parts = [
        f"<h1>{_text(plan['model'])} on {_text(plan['gpu'])}</h1>",
        f'<p class="verdict">{_text(plan["verdict"])}</p>',
        _facts(view),
        _flags(plan, view.engine.title),
        _table(plan["rows"]),
        f"<h2>{story.TITLE}</h2><p>{_text(story.LEAD)}</p>",
        *(
            f"<section><h3>{_text(p.heading)}</h3><p>{_text(p.text)}</p>{drawn.pop(p.figure, '')}</section>"
            for p in paragraphs
        ),
        "<h2>More figures</h2>",
        *drawn.values(),
        _sources(plan["sources"]),
        f"<footer>Specmargin {__version__}. All numbers are from the cost model of "
        "<code>specmargin plan</code>.</footer>",
    ]
    return _DOCUMENT.format(
        title=_text(f"{plan['model']} on {plan['gpu']}: does speculation pay?"), style=_style(), body="\n".join(parts)
    )


def _drawn(name: str, view: View, advance: Callable[[], None]) -> str:
    try:
        shown = figure(name, view)
    except DoesNotApplyError:
        return ""
    finally:
        advance()
    drawings = "".join(f'<div class="{theme.name}">{_svg(shown, theme)}</div>' for theme in (LIGHT, DARK))
    label = _text(f"{shown.title}. {shown.takeaway}")
    return f'<figure role="img" aria-label="{label}">{drawings}</figure>'


def _svg(figure: Figure, theme: Theme) -> str:
    """Ids get a prefix per drawing, because drawings in one page must not share them."""
    text = str(rendered(figure.chart(theme), "svg"))
    prefix = f"{figure.name}-{theme.name}-"
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{prefix}\1"', text)


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
    shown = f"<pre>{_text(text)}</pre>" if text else "<p>Nothing to configure: leave speculation disabled.</p>"
    return f"<h2>For {_text(engine)}</h2>{shown}<ul>{notes}</ul>"


def _table(rows: Iterable[dict[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name, _ in _COLUMNS.values())
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: dict[str, Any]) -> Iterator[str]:
    depth = row["better_depth"]
    shown = row | {
        "tpot_seconds": row["tpot_seconds"] * 1e3,  # in milliseconds, as its column says
        "better": "" if depth is None else f"{depth or 'none'}: {row['better_speedup']:.2f}×",
        "hurdle": row["hurdle_note"] or f"{row['hurdle']:.2f}",
    }
    for key, (_, form) in _COLUMNS.items():
        yield f"<td>{_text('–' if shown[key] is None else form.format(shown[key]))}</td>"


def _sources(sources: dict[str, str]) -> str:
    rows = "".join(f"<li><b>{_text(name)}</b>: {_text(source)}</li>" for name, source in sources.items())
    return f"<h2>Sources</h2><ul>{rows}</ul>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _style() -> str:
    return (
        f":root{{--paper:{LIGHT.paper};--ink:{LIGHT.ink};--quiet:{LIGHT.quiet};--faint:{LIGHT.faint}}}"
        f"@media(prefers-color-scheme:dark){{:root{{--paper:{DARK.paper};--ink:{DARK.ink};--quiet:{DARK.quiet};"
        f"--faint:{DARK.faint}}}.light{{display:none}}.dark{{display:block!important}}}}" + _RULES
    )


_RULES = """
.dark{display:none}
body{background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,sans-serif}
body{max-width:46rem;margin:3rem auto;padding:0 1.2rem}
h1{font-size:1.9rem;line-height:1.2}h2{margin-top:3rem}.verdict{font-size:1.15rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem 1.2rem}
dt{color:var(--quiet);font-size:.8rem}dd{margin:0}
pre{background:color-mix(in srgb,var(--ink) 6%,transparent);padding:1rem;overflow-x:auto}
pre{border-radius:6px;font-size:.85rem;white-space:pre-wrap}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.8rem;width:100%}
th,td{text-align:right;padding:.35rem .4rem;border-bottom:1px solid var(--faint);white-space:nowrap}
th:last-child,td:last-child{text-align:left;white-space:normal;min-width:8rem}th{color:var(--quiet);font-weight:500}
figure{margin:2rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto}
footer,ul{color:var(--quiet);font-size:.85rem}footer{margin:3rem 0}
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
