"""The report: one HTML file without scripts or network requests, light or dark by the reader's setting."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from string import Template
from typing import Any

from specmargin._version import __version__
from specmargin.answers.command_line import command_line
from specmargin.show.explorer import story
from specmargin.show.explorer.choices import next_tokens
from specmargin.show.explorer.drawings import dark_rules, drawings
from specmargin.show.explorer.gallery import GALLERY
from specmargin.show.explorer.view import View
from specmargin.show.explorer.words import bottleneck
from specmargin.show.figures.svg import drawers
from specmargin.show.figures.theme import DARK, LIGHT, Theme

_COLUMNS = {
    "batch": ("batch", "{:,}"),
    "depth": ("draft", "{}"),
    "speedup": ("speed-up", "{:.2f}×"),
    "better": ("better", "{}"),
    "goodput_tokens_per_second": ("tok/s", "{:,.0f}"),
    "no_spec_tokens_per_second": ("plain", "{:,.0f}"),
    "tpot_seconds": ("ms/token", "{:.2f}"),
    "one_more": ("one more token", "{:+.1%}"),
    "break_even_acceptance": ("break-even", "{:.2f}"),
    "distinct_experts": ("experts", "{:.0f}"),
    "bound_by": ("bottleneck", "{}"),
}
_DOCUMENT = files("specmargin.show.explorer") / "static" / "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a report comes from."""

    made: datetime
    link: str = ""  # to the same scenario on the page that wrote the report


def page(view: View, origin: Origin, *, advance: Callable[[], None] = lambda: None) -> str:
    """The whole document. `advance` is called after each figure, in any thread."""
    drawers()  # they start while the first figures are computed
    paragraphs = story.paragraphs(view)
    drawn = drawings(list(GALLERY), view, heading="h4", advance=advance)
    plan = view.plan
    parts = [
        *answer(view, heading="h1"),
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
    title = _text(f"{plan['model']} on {plan['gpu']}: does speculation pay?")
    document = Template(_DOCUMENT.read_text(encoding="utf-8"))
    return document.substitute(title=title, colours=_colours(), body="\n".join(parts))


def answer(view: View, *, heading: str) -> list[str]:
    """The answer alone, as the parts of a page without scripts."""
    plan = view.plan
    return [
        f"<{heading}>{_text(plan['model'])} on {_text(plan['gpu'])}</{heading}>",
        f'<p class="verdict">{_text(plan["verdict"])}</p>',
        f"<ul>{''.join(f'<li>{_text(fact)}</li>' for fact in plan['verdict_details'])}</ul>",
        _facts(view),
        _flags(plan, view.answer.engine.title),
        _table(view),
    ]


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
        f"<tr{'' if row['fits'] else ' class=unfit'}>{''.join(_cells(row, more))}</tr>"
        for row, more in zip(plan["rows"], next_token, strict=False)
    )
    notes = [
        "Plain: without speculation. One more token: what it would add to tok/s, its drafting included. "
        "Break-even: the per-token acceptance at which this depth equals no speculation. Experts: per layer and GPU."
    ]
    if not all(row["fits"] for row in plan["rows"]):
        notes.append(
            f"In parentheses: does not fit in memory ({plan['largest_batch']:,} sequences fit with these flags, "
            f"{plan['no_spec_largest_batch']:,} without speculation)."
        )
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p class="note">{" ".join(notes)}</p>'


def _cells(row: dict[str, Any], next_token: dict[str, Any]) -> Iterator[str]:
    depth = row["better_depth"]
    shown = row | {
        "bound_by": bottleneck(row["bound_by"]),
        "tpot_seconds": row["tpot_seconds"] * 1e3,  # in milliseconds, as its column says
        "better": "" if depth is None else f"{depth or 'none'}: {row['better_speedup']:.2f}×",
        "one_more": next_token["gain"] or None,  # 0: its step has no CUDA graph
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


def _colours() -> str:
    def properties(theme: Theme) -> str:
        return f":root{{--paper:{theme.paper};--ink:{theme.ink};--quiet:{theme.quiet};--faint:{theme.faint}}}"

    return f"{properties(LIGHT)}@media screen and (prefers-color-scheme:dark){{{properties(DARK)}{dark_rules()}}}"
