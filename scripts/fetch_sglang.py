"""Fetch the Python files of a pinned SGLang release, which tests read and run beside ours.

    python scripts/fetch_sglang.py

`make test` runs this first. The wheel comes from the package index without its dependencies, once, and only its `.py`
files are unpacked, into `.cache/sglang-VERSION/sglang/`: all of the newest release, and of older ones what tests need.
Without an index those tests are skipped with a message, or fail if CI is set.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.5.23"
#: The first releases with slots by batch size, with steps of 0, and with DSpark; then those that the plug-in supports.
OLDER = ("0.5.13", "0.5.14", "0.5.16", "0.5.21", "0.5.22")
#: Of the older releases.
PARTS = (
    "sglang/version.py",
    "sglang/_version.py",
    "sglang/srt/environ.py",
    "sglang/srt/plugins/",
    "sglang/srt/speculative/",
)
#: One wheel for every machine: only its Python files are read.
WHEEL = ("--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64")


def package(version: str = VERSION) -> Path:
    """The folder `sglang` of that release, fetched or not."""
    return ROOT / ".cache" / f"sglang-{version}" / "sglang"


def fetch(version: str = VERSION) -> Path | None:
    """The folder `sglang` of that release, or None where the wheel cannot be downloaded."""
    folder = package(version)
    if folder.is_dir():
        return folder
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent.parent) as scratch:
        print(f"fetching the Python files of sglang {version} ...", flush=True)
        if not _download(version, Path(scratch)):
            return None
        unpacked = Path(scratch) / "unpacked"
        _unpack(next(Path(scratch).glob("*.whl")), unpacked, ("sglang/",) if version == VERSION else PARTS)
        shutil.rmtree(folder.parent, ignore_errors=True)
        unpacked.rename(folder.parent)
    return folder


def _download(version: str, folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *WHEEL]
    return subprocess.run([*command, "--dest", str(folder), f"sglang=={version}"], check=False).returncode == 0


def _unpack(wheel: Path, folder: Path, parts: tuple[str, ...]) -> None:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(parts) and name.endswith(".py")]
        archive.extractall(folder, names)


def main() -> int:
    for version in (VERSION, *OLDER):
        folder = fetch(version)
        print(f"sglang {version}: {folder or 'not available; the tests that read it are skipped'}")
        if folder is None:  # no index: the others would wait for it, too
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
