"""Other commits of this repository, unpacked beside it for comparisons."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lab import ROOT
from specmargin.errors import InputError

_FOLDER = ROOT / ".cache" / "commits"  # ignored by git; kept, so that compiled code is not compiled again
PLAN = ("plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--engine", "vllm", "--drafter", "mtp", "--prices", "laws")


def checkout(commit: str) -> Path:
    """The files of a commit, in a folder of their own."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if found.returncode != 0:
        raise InputError(f"{commit!r} is not a commit of this repository")
    folder = _FOLDER / found.stdout.decode().strip()
    if not folder.is_dir():
        archive = subprocess.run(["git", "archive", folder.name], cwd=ROOT, capture_output=True, check=True).stdout
        unfinished = folder.with_suffix(".unfinished")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    return folder


def python(folder: Path, arguments: Sequence[str]) -> str:
    """Standard output of this Python with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise InputError(f"{folder.name}: python {' '.join(arguments)[:80]} failed: {last[0]}")
    return done.stdout
