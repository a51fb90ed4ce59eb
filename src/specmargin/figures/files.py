"""A chart into a file: the format is the file's ending, and nothing is fetched from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specmargin.errors import InputError, needs_extra
from specmargin.files import check_new

if TYPE_CHECKING:
    import altair as alt

ENDINGS = (".png", ".svg", ".html", ".json")


def check_target(path: Path, *, force: bool) -> None:
    """Before any work is done: an ending that we can draw, in a folder that exists, over nothing."""
    if path.suffix not in ENDINGS:
        raise InputError(f"{path}: a figure ends in {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    check_new(path, force=force)
    with needs_extra("figures"):
        import altair  # noqa: F401, PLC0415 (an extra)
        import vl_convert  # noqa: F401, PLC0415


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    if path.suffix == ".html":
        chart.save(str(path), inline=True)  # the page carries its own scripts
    else:
        chart.save(str(path), scale_factor=2.0)
