"""Which features of the plug-ins each release of vLLM and SGLang has the parts for, from the releases' sources.

    python -m lab.live.releases                       # releases of the last six months that the package index has
    python -m lab.live.releases --since 2026-01-01

Asks the package index that pip uses, fetches the Python files that the check reads (`scripts/fetch_engines.py`), and
writes `docs/results/releases.csv` and the tables of `docs/results/releases.md`. No engine runs. `make test` checks the
releases of the committed table again.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from lab import ROOT
from specmargin.live.parts import ENGINES, STANDS_ON, Feature, Problem, Report, check_sources, parts_list

sys.path.insert(0, str(ROOT / "scripts"))
import fetch_engines
from package_index import FAILURES

PAGE = ROOT / "docs" / "results" / "releases.md"
BEGIN, END = "<!-- begin: python -m lab.live.releases -->", "<!-- end -->"
_MONTHS = 6
_YES = "yes"
_NONE = ""  # the plug-in has no such feature in that engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A release, and by feature "yes" or "no" with the first part that it lacks."""

    engine: str
    release: str
    day: date
    cells: tuple[str, ...]  # by `Feature`


def check(engine: str, release: str, day: date) -> Row:
    """Of a release that is fetched."""
    report = check_sources(engine, fetch_engines.package(engine, release), release=release)
    return Row(engine=engine, release=release, day=day, cells=tuple(_cell(report, feature) for feature in Feature))


def _cell(report: Report, feature: Feature) -> str:
    if feature not in report.listed.features:
        return _NONE
    problems = report.problems_of(feature)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"no: {_short(problems[0])}{more}"
    return _YES if report.has(feature) else f"no: needs {STANDS_ON[feature].words}"


def _short(problem: Problem) -> str:
    """Without parameters and modules."""
    part = problem.part
    return f"{part.owner}{'.' if part.owner else ''}{part.name} {problem.why.partition(':')[0]}"


# --- the table in both forms ---


def csv_text(rows: Iterable[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["engine", "release", "date", *Feature])
    writer.writerows([row.engine, row.release, row.day.isoformat(), *row.cells] for row in rows)
    return file.getvalue()


def read_rows(text: str) -> list[Row]:
    return [
        Row(
            engine=row["engine"],
            release=row["release"],
            day=date.fromisoformat(row["date"]),
            cells=tuple(row[feature] for feature in Feature),
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def tables_text(rows: Sequence[Row]) -> str:
    return "\n\n".join(_table(engine, [row for row in rows if row.engine == engine]) for engine in ENGINES)


def _table(engine: str, rows: Sequence[Row]) -> str:
    listed = parts_list(engine)
    shown = [number for number, feature in enumerate(Feature) if feature in listed.features]
    head = [listed.title, "date", *(feature.words for feature in listed.features)]
    lines = [head, ["---"] * len(head)]
    lines += [[row.release, row.day.isoformat(), *(_shown(row.cells[number]) for number in shown)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(cell: str) -> str:
    """With the part as code."""
    return re.sub(r"no: (?!needs )(\S+)", r"no: `\1`", cell)


def page_text(rows: Sequence[Row], page: str, *, asked: date, since: date) -> str:
    """The page with its tables replaced."""
    before, _, rest = page.partition(BEGIN)
    head = f"The {len(rows)} releases from {since} to {asked}:"
    return f"{before}{BEGIN}\n\n{head}\n\n{tables_text(rows)}\n\n{END}{rest.partition(END)[2]}"


# --- the command ---


def main(arguments: Sequence[str] | None = None, *, today: date | None = None) -> int:
    today = today or date.today()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", type=date.fromisoformat, default=six_months_before(today), help="a day: 2026-01-01")
    since = parser.parse_args(arguments).since
    try:
        found = [(engine, *item) for engine in ENGINES for item in fetch_engines.released(engine, since).items()]
    except FAILURES as error:
        print(f"The package index does not answer ({error}): nothing is written.", file=sys.stderr)
        return 1
    if not fetch_engines.fetch([(engine, release) for engine, release, _ in found]):
        print("Not every release could be fetched: nothing is written, and the next run continues.", file=sys.stderr)
        return 1
    rows = [check(*one) for one in found]
    fetch_engines.TABLE.write_text(csv_text(rows))
    page = page_text(rows, PAGE.read_text(encoding="utf-8"), asked=today, since=since)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{tables_text(rows)}\n\nWritten to {fetch_engines.TABLE} and {PAGE}.")
    return 0


def six_months_before(today: date) -> date:
    months = today.year * 12 + today.month - 1 - _MONTHS
    return date(months // 12, months % 12 + 1, min(today.day, 28))


if __name__ == "__main__":
    sys.exit(main())
