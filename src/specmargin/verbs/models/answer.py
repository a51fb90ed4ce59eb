"""What `models --check` found in files of the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from specmargin.answers.answer import Answer, RequestKind
from specmargin.answers.blocks import Block, Line, Table, bold, left, warned


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """One file: what was read from it, or the first fault."""

    path: str
    kind: str | None = None  # None where it could not be told
    name: str = ""
    facts: dict[str, str] | None = None
    warnings: tuple[str, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckAnswer(Answer[RequestKind]):
    checks: tuple[FileCheck, ...]

    schema: ClassVar[str] = "specmargin.check/1"

    @property
    def verdict(self) -> str:
        wrong = sum(check.fault is not None for check in self.checks)
        return f"{len(self.checks)} checked, {wrong} with a fault"

    @property
    def exit_code(self) -> int:
        return int(any(check.fault is not None for check in self.checks))

    def table(self) -> list[dict[str, Any]]:
        return [
            {
                "path": check.path,
                "kind": check.kind,
                "name": check.name,
                "valid": check.fault is None,
                "fault": check.fault,
                "facts": check.facts,
                "warnings": list(check.warnings),
            }
            for check in self.checks
        ]

    def values(self) -> dict[str, Any]:
        return {"checks": self.table()}

    def blocks(self) -> Iterator[Block]:
        for check in self.checks:
            yield from _blocks(check)
        if len(self.checks) > 1:
            yield Line(self.verdict)


def _blocks(check: FileCheck) -> Iterator[Block]:
    if check.fault is not None:
        yield bold(f"not valid: {check.fault}")
        return
    yield bold(f"valid: {check.kind} {check.name} ({check.path})")
    yield Table(columns=left("read", "value"), rows=[[name, text] for name, text in (check.facts or {}).items()])
    yield from warned(check.warnings)
