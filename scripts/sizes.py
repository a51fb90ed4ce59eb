"""Measure what the base install and each extra take on disk, in environments of their own.

    python scripts/sizes.py [WHEEL]      # without a wheel: this checkout

pip installs into an empty folder and takes packages from its cache. Sizes are of the files, without compiled bytecode;
that of an extra is what it adds to the base install. The table of docs/guide/install.md has these numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guide" / "install.md"


def main(arguments: Sequence[str]) -> None:
    subject = arguments[0] if arguments else str(ROOT)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    base = installed_bytes(subject)
    sizes = {name: installed_bytes(f"{subject}[{name}]") - base for name in extras}
    for name, size in {"base": base, **sizes}.items():
        print(f"{name:8} {size / 1e6:6.0f} MB")
    PAGE.write_text(with_sizes(PAGE.read_text(), base, sizes))
    print(f"written to {PAGE.relative_to(ROOT)}")


def installed_bytes(requirement: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*pip, "--target", folder, requirement], check=True)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def with_sizes(page: str, base: int, sizes: dict[str, int]) -> str:
    """The page with these numbers, to two digits."""
    for name, size in sizes.items():
        page = re.sub(rf"(\| `{name}` \|.*\| )[\d.]+ [MG]B \|", rf"\g<1>{rounded(size)} |", page)
    return re.sub(r"base install \([\d.]+ [MG]B", f"base install ({rounded(base)}", page)


def rounded(size: float) -> str:
    megabytes = float(f"{size / 1e6:.2g}")
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


if __name__ == "__main__":
    main(sys.argv[1:])
