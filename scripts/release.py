"""Build the distributions of this commit into dist/ and check them, for `make release`.

Built twice: the bytes must be the same. `twine check --strict` reads their metadata. The wheel is installed into an
environment of its own, where every verb runs (`try_install.py`), then README's commands
(`tests/contracts/test_install.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    version = _version()
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout:
        sys.exit("make release: there are changes that are not committed; a release is a commit")
    if f"## {version} (" not in (ROOT / "CHANGELOG.md").read_text() or "dev" in version:
        sys.exit(f"make release: CHANGELOG.md has no section '## {version} (DATE)', or the version is not a release")
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(Path(folder) / name) for name in ("first", "second"))
        check_same(first, second)
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(first, dist)
        _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
        (wheel,) = dist.glob("*.whl")
        try_wheel(wheel, Path(folder) / "environment")
    for path in sorted(dist.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB  sha256 {_digest(path)}")


def _version() -> str:
    found = re.search(r'"(.+)"', (ROOT / "src" / "specmargin" / "_version.py").read_text())
    assert found
    return found[1]


def build(folder: Path) -> Path:
    """An sdist, and the wheel that it gives. Times in them are those of the commit."""
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    environment = os.environ | {"SOURCE_DATE_EPOCH": committed.stdout.strip()}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


def check_same(first: Path, second: Path) -> None:
    ours, theirs = ({path.name: _digest(path) for path in folder.iterdir()} for folder in (first, second))
    if ours != theirs:
        sys.exit(f"make release: two builds differ: {ours} and {theirs}")


def try_wheel(wheel: Path, folder: Path) -> None:
    """With nothing but its own requirements, away from the checkout."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    _run(python, "-I", str(ROOT / "scripts" / "try_install.py"))
    os.environ["SPECMARGIN_WHEEL"] = str(wheel)
    _run(sys.executable, "-m", "pytest", "-q", "tests/contracts/test_install.py")


def _run(*command: str) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"make release: failed: {' '.join(command)}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
