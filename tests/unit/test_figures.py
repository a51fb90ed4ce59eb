"""Figures: one look, structure apart from data, and the numbers that others printed."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("altair")

from specmargin.acceptance.survival import parse_acceptance
from specmargin.modes import DRAFTERS as KINDS
from specmargin.modes import FLEET_POLICIES
from specmargin.modes import POLICIES as POLICY_NAMES
from specmargin.routing.profile import UNIFORM
from specmargin.show.explorer.choices import marked_row
from specmargin.show.explorer.gallery import GALLERY, DoesNotApplyError, figure
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.story import paragraphs
from specmargin.show.explorer.view import View
from specmargin.show.figures.figure import Figure, columns, end_labels
from specmargin.show.figures.files import rendered, save
from specmargin.show.figures.marks import tips
from specmargin.show.figures.roofline import crossing, intensity
from specmargin.show.figures.theme import DARK, DRAFTERS, LIGHT, NO_SPECULATION, POLICIES, Theme, config, policy_colour
from tests.conftest import ROOT
from tests.scenarios import scenario


def view(**changes: Any) -> View:
    return View(request=PageRequest(**{"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws", **changes}))


STATIC = ROOT / "src" / "specmargin" / "show" / "explorer" / "static"
NEED_A_BANK = ("reliability", "joint", "ladder")
SIMULATED = ("day", "policies")  # carry rows of their own, and take seconds
DRAWN = [name for name in GALLERY if name not in (*NEED_A_BANK, *SIMULATED)]


def named(spec: Any) -> set[str]:
    """Tables that a specification asks for."""
    if isinstance(spec, dict):
        own = {spec["data"]["name"]} if isinstance(spec.get("data"), dict) and "name" in spec["data"] else set()
        return own.union(*(named(value) for value in spec.values())) if spec else own
    return set().union(*(named(value) for value in spec)) if isinstance(spec, list) else set()


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_words_tables_and_a_chart(name: str) -> None:
    made = figure(name, view())
    assert made.title and made.takeaway.endswith(".") and made.source
    assert named(made.structure) == set(made.tables)
    for spec in (made.chart(LIGHT).to_dict(), made.chart(DARK).to_dict()):
        assert spec["datasets"].keys() >= made.tables.keys()
        assert "Source: " in " ".join(str(part) for part in _texts(spec))


def _texts(spec: Any) -> list[Any]:
    return [value for values in spec["datasets"].values() for row in values for value in row.values()]


@pytest.mark.parametrize("name", DRAWN)
def test_no_axis_or_label_names_a_missing_value(name: str) -> None:
    """Rows without the field of an axis put "undefined" among its ticks."""
    drawn = str(rendered(figure(name, view(context=64_500)).chart(LIGHT), "svg"))
    assert not re.search(r">(undefined|null|NaN)<", drawn)


@pytest.mark.parametrize("name", DRAWN)
def test_structure_depends_on_the_key_and_never_on_the_rows(name: str) -> None:
    one, two = figure(name, view(acceptance="0.5")), figure(name, view(acceptance="0.9"))
    if one.key == two.key:
        assert one.structure == two.structure
        assert one.draw(*one.shape).to_dict() == two.draw(*two.shape).to_dict()
    assert "values" not in json.dumps(one.structure.get("data", {}))


@pytest.mark.parametrize("name", DRAWN)
def test_charts_name_no_colour_of_their_own(name: str) -> None:
    text = json.dumps(figure(name, view()).structure)
    assert not any(f'"{attribute}": "#' in text for attribute in ("color", "fill", "stroke"))
    assert "scheme" not in text


def styles(spec: Any) -> set[str]:
    """Styles that the marks of a specification name."""
    if isinstance(spec, list):
        return set().union(*map(styles, spec))
    if not isinstance(spec, dict):
        return set()
    named_here = spec["mark"].get("style", []) if isinstance(spec.get("mark"), dict) else []
    own = {named_here} if isinstance(named_here, str) else set(named_here)
    return own.union(*map(styles, spec.values()))


def test_every_style_is_one_of_the_theme() -> None:
    """Vega-Lite ignores a style that does not exist."""
    used = set().union(*(styles(figure(name, view()).structure) for name in DRAWN))
    known = config(LIGHT)["style"].keys()
    assert len(used) > 12 and used <= known
    script = (STATIC / "charts.js").read_text(encoding="utf-8")
    resized = re.findall(r'small\("([\w-]+)"|config\.style\.([\w-]+)', script)
    assert len(resized) > 4 and {one or other for one, other in resized} <= known


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_days_are_drawn_in_the_common_look(name: str) -> None:
    made = figure(name, view())
    assert "median time between tokens" in made.takeaway.lower()
    assert str(rendered(made.chart(DARK), "svg")).startswith("<svg")
    assert not any(f'"{part}": "#' in json.dumps(made.structure) for part in ("color", "fill", "stroke"))


def test_the_simulated_day_swings_from_one_sequence_to_a_depth_that_the_load_changes() -> None:
    seen = view(model="qwen3-30b-a3b")
    tables = figure("day", seen).tables
    load = [row["batch"] for row in tables["load"]]
    assert min(load) < 3 and max(load) > seen.answer.config.schedule.ranges[0].last
    for policy in ("schedule", "controller"):
        depths = [row["value"] for row in tables["depth"] if row["policy"] == policy]
        assert max(depths) - min(depths) >= 1.0
    assert {row["policy"] for row in tables["ttft"]} == {row["policy"] for row in tables["tpot"]}
    waits = [row["value"] for row in tables["ttft"] if row["policy"] == "schedule"]
    assert max(waits) < 1000.0  # milliseconds: no queue, so the comparison is about speed


@pytest.mark.parametrize("name", NEED_A_BANK)
def test_what_needs_a_bank_says_so(name: str) -> None:
    with pytest.raises(DoesNotApplyError, match="drop one on the page"):
        figure(name, view())


def test_axes_say_what_they_measure() -> None:
    for name in DRAWN:
        text = json.dumps(figure(name, view()).structure)
        assert text.count('"title": "') >= 2, name


@pytest.mark.parametrize("ending", ["png", "svg", "html", "json"])
def test_files_are_made_without_browser_or_network(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    save(figure("ledger", view()).chart(DARK), path)
    assert path.stat().st_size > 3000
    if ending in ("svg", "html"):
        text = path.read_text()
        assert "The price of one more draft token" in text
        assert "https://cdn" not in text and "<script src" not in text


def test_dense_models_have_no_expert_figures() -> None:
    dense = view(model="qwen3.6-27b")
    for name in ("coverage", "popularity", "overlap", "design"):
        with pytest.raises(DoesNotApplyError, match="dense"):
            figure(name, dense)
    assert "is dense" in figure("roofline", dense).takeaway


# --- colours ---


def lightness(colour: str) -> float:
    """CIE L*, 0 to 100: what is left of a colour in greyscale."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * float(np.cbrt(y)) - 16 if y > 0.008856 else 903.3 * y


def contrast(one: str, two: str) -> float:
    a, b = ((lightness(colour) + 16) / 116 for colour in (one, two))
    high, low = max(a**3, b**3), min(a**3, b**3)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_stay_apart_in_greyscale(theme: Theme) -> None:
    """The first two series, which most figures use, differ strongly; heat only gets darker, or only lighter."""
    assert abs(lightness(theme.series[0]) - lightness(theme.series[1])) > 5
    steps = np.diff([lightness(colour) for colour in theme.heat])
    assert np.all(steps < -5) or np.all(steps > 5)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_is_readable(theme: Theme) -> None:
    for colour in (theme.ink, theme.quiet, theme.accent):
        assert contrast(colour, theme.paper) > 4.5
    for colour in theme.series[:4]:
        assert contrast(colour, theme.paper) > 3.0
    assert contrast(theme.on_low, theme.heat[0]) > 4.5 and contrast(theme.on_high, theme.heat[-1]) > 4.5


def test_themes_configure_the_same_things() -> None:
    assert config(LIGHT).keys() == config(DARK).keys()
    assert config(LIGHT)["style"].keys() == config(DARK)["style"].keys()


def domains(spec: Any) -> list[list[Any]]:
    """Domains of the colour scales of a specification."""
    if isinstance(spec, dict):
        own = spec.get("color") or {}
        domain = own.get("scale", {}).get("domain") if isinstance(own, dict) else None
        rest = [found for value in spec.values() for found in domains(value)]
        return [*([domain] if domain else []), *rest]
    return [found for value in spec for found in domains(value)] if isinstance(spec, list) else []


def test_a_drafter_and_a_policy_have_one_colour_everywhere() -> None:
    """The place in the domain is the colour, so every scale of drafters has the same domain; policies likewise."""
    for name in ("speedup", "pareto", "survival"):
        for kind in ("mtp", "eagle"):
            made = figure(name, view(drafter=kind))
            assert all(domain == list(DRAFTERS) for domain in domains(made.structure)), name
    for name in SIMULATED:
        found = domains(figure(name, view()).structure)
        assert found and all(domain == list(POLICIES) for domain in found)
    assert set(DRAFTERS) == {*KINDS, NO_SPECULATION}
    assert {policy_colour(name) for name in POLICY_NAMES} == set(POLICIES)
    assert {policy_colour(name) for name in FLEET_POLICIES} < set(POLICIES)
    for theme in (LIGHT, DARK):
        assert len(set(theme.series)) == len(theme.series) >= len(POLICIES)


def test_the_crossover_says_without_colour_who_leads() -> None:
    made = figure("crossover", view())
    assert {"▾ mtp", "▴ dflash"} <= set(re.findall(r"[▾▴] \w+", made.takeaway))
    for cell in made.tables["cells"]:
        mark = {"mtp": "▾", "dflash": "▴", "even": ""}[cell["winner"]]
        assert cell["text"].startswith(mark) and cell["text"].lstrip("▾▴")[0].isdigit()
    assert "'▾ mtp '" in json.dumps(made.structure, ensure_ascii=False)


@pytest.mark.parametrize("acceptance", ["0.3", "0.7", "0.95"])
def test_colour_scales_cover_the_data_and_little_else(acceptance: str) -> None:
    made = figure("context", view(acceptance=acceptance))
    values = [cell["speedup"] for cell in made.tables["cells"]]
    low, high = (float(end["speedup"]) for end in made.tables["ends"])
    assert low <= min(values) and max(values) <= high
    assert high - low <= max(values) - min(values) + 0.401


@pytest.mark.parametrize("name", ["speedup", "ledger", "context", "pareto"])
def test_sliders_and_drafters_change_the_rows_of_a_chart_and_not_the_chart(name: str) -> None:
    """A page then draws new rows; a new chart takes several times as long."""
    changes: list[dict[str, Any]] = [{"acceptance": "0.3"}, {"acceptance": "0.95"}, {"context": 512}]
    changes += [{"drafter": kind} for kind in ("dflash", "eagle", "ngram")]
    assert {figure(name, view(**change)).key for change in changes} == {figure(name, view()).key}


# --- rows, labels and knees ---


def test_columns_become_rows_with_rounded_numbers() -> None:
    made = columns(batch=np.array([1, 2]), share=[1 / 3, 2 / 3], text=map(str, "ab"), series="x")
    assert made == [
        {"batch": 1, "share": 0.3333, "text": "a", "series": "x"},
        {"batch": 2, "share": 0.6667, "text": "b", "series": "x"},
    ]
    with pytest.raises(ValueError, match="shorter"):
        columns(batch=[1, 2], share=[0.5])


def test_what_a_pointer_shows_has_a_title_and_a_format_where_they_are_given() -> None:
    shown = [tip.to_dict(context={}) for tip in tips("batch:O", "tpot:Q|ms/token|.2f", "share:Q||.1%")]
    assert shown == [
        {"field": "batch", "type": "ordinal"},
        {"field": "tpot", "type": "quantitative", "title": "ms/token", "format": ".2f"},
        {"field": "share", "type": "quantitative", "format": ".1%"},
    ]


def test_labels_are_moved_apart_in_order() -> None:
    ends = {"a": (1.0, 0.50), "b": (1.0, 0.51), "c": (1.0, 0.90)}
    placed = end_labels(ends, x="x", y="y", gap=0.1)
    heights = [row["y"] for row in placed]
    assert [row["series"] for row in placed] == ["a", "b", "c"]
    assert all(upper - lower > 0.099 for lower, upper in pairwise(heights))
    far = end_labels({"a": (1.0, 0.50), "b": (9.0, 0.51)}, x="x", y="y", gap=0.1, reach=2.0)
    assert [row["y"] for row in far] == [0.50, 0.51]
    assert end_labels({}, x="x", y="y", gap=0.1) == []


def test_knees_of_the_economics_post() -> None:
    """DeepSeek-V4-Flash on a B200 datasheet: an MoE layer turns compute-bound at about 10,950 tokens: the whole pool
    and the shared expert at 0.53 bytes against seven experts' arithmetic, (256+1)·0.53·1125/(2·7)."""
    curves = intensity(scenario("deepseek-v4-flash", "b200", routing=UNIFORM))
    assert curves.ridge == pytest.approx(1125.0)
    assert curves.mixture_knee == pytest.approx(10_950, rel=0.02)
    # Six experts at 0.53 bytes and the shared one at 1 byte, as the checkpoint has them.
    assert curves.dense_knee == pytest.approx((6 * 0.53 + 1.0) / 7 * 1125 / 2, rel=0.02)


def test_knees_lie_where_intensity_meets_the_ridge() -> None:
    curves = intensity(scenario("qwen3.6-35b-a3b", "h200"))
    assert curves.mixture is not None and curves.mixture_knee is not None
    assert curves.dense_knee < curves.mixture_knee
    assert np.interp(curves.dense_knee, curves.positions, curves.dense) == pytest.approx(curves.ridge, rel=0.02)
    assert crossing(np.array([1.0, 2.0]), np.array([1.0, 2.0]), 8.0) == pytest.approx(8.0)


# --- the price of one more draft token ---


def totals(seen: View, field: str) -> dict[int, float]:
    by_batch: dict[int, float] = {}
    for row in figure("ledger", seen).tables["rows"]:
        by_batch[row["batch"]] = by_batch.get(row["batch"], 0.0) + row[field]
    return by_batch


@pytest.mark.parametrize("drafter", ["mtp", "eagle", "ngram"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_tick_is_above_the_bar_exactly_where_one_token_deeper_is_faster(drafter: str, engine: str) -> None:
    """Drafting is part of the price: without it, bars said "deeper" where the plan stops."""
    seen = view(engine=engine, drafter=drafter)
    made = figure("ledger", seen)
    needs, has = totals(seen, "hurdle"), {row["batch"]: row["hurdle"] for row in made.tables["survival"]}
    pricer = seen.pricer.with_graph_limit(None)
    for size in needs:
        depth = seen.answer.config.schedule.depth_at(size)
        goodput = pricer.grid([size], depth + 1).goodput[0]
        if abs(goodput[depth + 1] / goodput[depth] - 1.0) > 0.002:
            assert (has[size] > needs[size]) == (goodput[depth + 1] > goodput[depth]), size
    fits = seen.answer.plan.largest_batch
    assert all(size <= fits for size in needs) and set(needs) == set(has)


def test_one_more_token_does_not_jump_from_batch_to_batch() -> None:
    """DeepSeek-V3: kernels pad to tiles, so a single position cost 355, 1,131, 51 and 926 µs at batch 16 to 128."""
    seen = view(model="deepseek-v3", gpus=8)
    microseconds = totals(seen, "microseconds")
    assert "averaged over the batch" in figure("ledger", seen).takeaway
    for size in (16, 32, 64):
        assert 0.5 < microseconds[2 * size] / microseconds[size] < 1.2


def test_bars_that_do_not_fit_on_the_axis_are_marked_with_their_height() -> None:
    seen = view(drafter="model:qwen3-32b", gpus=2)
    cut = figure("ledger", seen).tables["cut"]
    assert cut and cut[0]["batch"] == 1
    needed = float(seen.next_tokens.hurdle[0])
    assert cut[0]["text"] == f"▲ {needed:.1f}" and needed > 1.5
    assert totals(seen, "hurdle")[1] == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_story_tile_and_figures_have_one_price_of_one_more_token(batch: int) -> None:
    seen = view(batch=batch)
    rows = [row for row in figure("ledger", seen).tables["rows"] if row["batch"] == batch]
    whole = sum(row["microseconds"] for row in rows)
    attention = next(row["microseconds"] for row in rows if row["kind"] == "attention")
    told = {part.id: part.text for part in paragraphs(seen)}
    assert f"attention with its projections is {attention / whole:.0%} of the price" in told["attention"]
    needed = sum(row["hurdle"] for row in rows)
    assert float(seen.next_tokens.hurdle[-1]) == pytest.approx(needed, rel=2e-3)
    assert f"takes the time of {needed:.2f} committed tokens" in told["hurdle"]
    (line,) = figure("survival", seen).tables["needed"]
    assert line["survival"] == pytest.approx(needed, rel=2e-3)


def test_a_hurdle_that_is_no_probability_is_not_printed_as_one() -> None:
    seen = view(drafter="model:qwen3-32b", gpus=2, batch=1)
    tile = marked_row(seen)["next_token"]
    assert float(seen.next_tokens.hurdle[-1]) > 1.0 > tile["survival"] and tile["gain"] < 0.0
    assert figure("survival", seen).tables["needed"] == []


def test_price_draws_the_step_that_was_asked_for(tmp_path: Path) -> None:
    from specmargin.cli.main import run  # noqa: PLC0415

    path = tmp_path / "step.json"
    run("price", ["qwen3-30b-a3b", "--gpu", "h200", "--batch", "8", "--depth", "2", "--plot", str(path)])
    spec = json.loads(path.read_text())
    assert spec["title"]["text"] == "A step of 8 sequences × 3 positions"
    rows = spec["datasets"]["rows"]
    assert {row["part"] for row in rows} == {"verify step", "drafting"}
    assert {"routed experts", "attention"} <= {row["name"] for row in rows}


def test_the_histogram_of_a_curve_is_a_distribution() -> None:
    from specmargin.show.figures.acceptance import accepted_shares  # noqa: PLC0415

    shares = accepted_shares(parse_acceptance("0.7,0.5,0.2"), 5)
    assert sum(shares) == pytest.approx(1.0)
    assert shares[0] == pytest.approx(0.3)
    assert all(share >= 0 for share in shares)


def test_a_figure_is_drawn_from_any_rows() -> None:
    made = figure("speedup", view())
    other = Figure(
        **{field: getattr(made, field) for field in ("name", "title", "takeaway", "source", "draw", "shape")},
        tables={name: [] for name in made.tables},
    )
    assert str(rendered(other.chart(), "svg")).startswith("<svg")
