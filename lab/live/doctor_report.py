"""What `doctor` says of every recorded server, beside what was injected: the table of docs/results/doctor.md.

python -m lab.live.doctor_report [FOLDER]     tests/recordings by default; --write: into the document
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.live.replay import judged, read_recording, request_of

RECORDINGS, DOCUMENT = ROOT / "tests" / "recordings", ROOT / "docs" / "results" / "doctor.md"
_BEGIN, _END = "<!-- begin: python -m lab.live.doctor_report --write -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    name: str
    injected: str | None  # the cause that is right
    named: tuple[str, ...]
    loss: float | None
    status: str

    @property
    def right(self) -> bool:
        return (self.named[0] if self.named else None) == self.injected


def judge(path: Path) -> Judged:
    recording = read_recording(path)
    answer = judged(recording, request_of(recording), with_log=bool(recording["about"].get("with_log")))
    findings = answer.findings
    return Judged(
        name=path.stem,
        injected=recording["about"]["cause"],
        named=tuple(finding.id for finding in findings),
        loss=findings[0].loss if findings else None,
        status=str(answer.diagnosis.status),
    )


def report(rows: list[Judged]) -> str:
    """Servers that were recorded after `doctor` was last changed have a table of their own."""
    held_out = [row for row in rows if "held-out" in row.name]
    seen = table([row for row in rows if row not in held_out])
    return f"{seen}\n\nHeld out:\n\n{table(held_out)}" if held_out else seen


def table(rows: list[Judged]) -> str:
    faults, healthy = [row for row in rows if row.injected], [row for row in rows if not row.injected]
    lines = ["| recording | injected | named | loss | also named |", "| --- | --- | --- | ---: | --- |"]
    for row in [*faults, *healthy]:
        named = row.named[0] if row.named else f"none ({row.status})"
        loss = "" if row.loss is None else f"{row.loss:.0%}"
        cells = (
            row.name,
            row.injected or "none",
            named if row.right else f"**{named}**",
            loss,
            ", ".join(row.named[1:]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Faults: the right cause leads in {_count(faults)}. Healthy servers: none is named in {_count(healthy)}.",
    ]
    return "\n".join(lines)


def _count(rows: list[Judged]) -> str:
    return f"{sum(row.right for row in rows)} of {len(rows)}"


def written(document: str, text: str) -> str:
    before, rest = document.split(_BEGIN, 1)
    return f"{before}{_BEGIN}\n\n{text}\n\n{_END}{rest.split(_END, 1)[1]}"


def main(given: list[str]) -> None:
    folder: Any = next((Path(name) for name in given if not name.startswith("--")), RECORDINGS)
    text = report([judge(path) for path in sorted(folder.glob("*.json"))])
    print(text)
    if "--write" in given:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
