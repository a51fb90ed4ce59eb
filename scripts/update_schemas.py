"""Write docs/reference/schemas: the JSON Schema of every kind of catalog entry (`make schemas`)."""

from __future__ import annotations

import json
from pathlib import Path

from specmargin.catalog.entry_schema import SCHEMAS, json_schema

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "schemas"


def files() -> dict[Path, str]:
    """Content by path."""
    return {
        FOLDER / f"{kind}.schema.json": json.dumps(json_schema(kind), indent=2, ensure_ascii=False) + "\n"
        for kind in SCHEMAS
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
