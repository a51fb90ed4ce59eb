"""Answers that are a text file to print or to write: templates and schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from specmargin.answers.answer import Answer, RequestKind
from specmargin.answers.blocks import Block, Verbatim
from specmargin.answers.outputs_schema import ListOutputs, Outputs
from specmargin.files import write_table, write_text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ListAnswer(Answer[RequestKind]):
    """Entries as a table."""

    def written(self, outputs: Outputs) -> Self:
        if isinstance(outputs, ListOutputs) and outputs.output is not None:
            write_table(outputs.output, self.table(), force=outputs.force)
        return self


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextAnswer(Answer[RequestKind]):
    text: str
    path: Path | None = None  # where it was written

    schema: ClassVar[str] = "specmargin.text/1"

    @property
    def verdict(self) -> str:
        return self.text

    def values(self) -> dict[str, Any]:
        return {"text": self.text}

    def blocks(self) -> Iterator[Block]:
        if self.path is None:
            yield Verbatim(self.text.rstrip("\n"))

    def written(self, outputs: Outputs) -> Self:
        if not isinstance(outputs, ListOutputs) or outputs.output is None:
            return self
        write_text(outputs.output, self.text, force=outputs.force)
        return replace(self, path=outputs.output)
