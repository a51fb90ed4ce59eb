"""Write a chart to a file. The suffix selects the format; nothing is fetched from the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.errors import InputError, needs_extra
from specmargin.files import check_new, write_bytes
from specmargin.show.figures.theme import LIGHT, config

if TYPE_CHECKING:
    import altair as alt

ENDINGS = (".png", ".svg", ".html", ".json")


def check_target(path: Path, *, force: bool) -> None:
    """Check before any work is done: a supported suffix, an existing folder, and no file overwritten."""
    if path.suffix not in ENDINGS:
        raise InputError(f"{path}: the name of a figure must end in {', '.join(ENDINGS)}")
    check_new(path, force=force)
    with needs_extra():
        import altair  # noqa: F401, PLC0415 (an extra)
        import vl_convert  # noqa: F401, PLC0415


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    content = rendered(chart, path.suffix.removeprefix("."))
    write_bytes(path, content.encode() if isinstance(content, str) else content)


def rendered(chart: alt.TopLevelMixin, ending: str) -> str | bytes:
    """PNG at twice the size, SVG, a self-contained HTML page, or the Vega-Lite specification."""
    import vl_convert  # noqa: PLC0415 (an extra)

    spec = chart.to_dict()
    if "style" not in spec.get("config", {}):  # a chart without a theme gets the default one
        spec["config"] = config(LIGHT)
    match ending:
        case "png":
            return bytes(vl_convert.vegalite_to_png(spec, scale=2.0))
        case "svg":
            return str(vl_convert.vegalite_to_svg(spec))
        case "html":
            return str(vl_convert.vegalite_to_html(spec, bundle=True))
        case _:
            return json.dumps(spec, ensure_ascii=False, indent=1) + "\n"
