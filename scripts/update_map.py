"""Write the list of modules at the end of docs/map.md, one line each, from their docstrings: make map."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "specmargin"
PAGE = ROOT / "docs" / "map.md"
HEADING = "## Modules\n"


def main() -> None:
    walk, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    PAGE.write_text(walk + HEADING + modules_text(), encoding="utf-8")


def modules_text() -> str:
    """A heading per package with what it holds, and a line per module."""
    files = sorted(SOURCE.rglob("*.py"), key=lambda file: (file.parent.relative_to(SOURCE).parts, file.name))
    text = ""
    for folder, members in itertools.groupby(files, key=lambda file: file.parent):
        package = folder.relative_to(SOURCE).as_posix()
        modules = [file for file in members if not file.name.startswith("_")]
        if not modules:
            continue
        heading = "top level" if package == "." else f"{package}/"
        text += f"\n**{heading}** {first_sentence(folder / '__init__.py')}\n\n"
        text += "".join(f"- `{file.name}`: {first_sentence(file)}\n" for file in modules)
    return text


def first_sentence(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


if __name__ == "__main__":
    main()
