"""A wheel and an sdist, built and installed as a user would have them: nothing of catalog or page is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest

from specmargin._version import __version__
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "specmargin"


DIST_INFO = f"specmargin-{__version__}.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("dist"))


def _build(folder: Path, *options: str) -> Path:
    """As `make release`: an sdist, and the wheel that it gives."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _shipped() -> set[str]:
    """Every file of the package but what running it leaves there."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"specmargin/{path.relative_to(PACKAGE).as_posix()}" for path in files}


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """No tests, no laboratory, no machine code of Numba's; nothing twice; the licence inside."""
    with ZipFile(built / f"specmargin-{__version__}-py3-none-any.whl") as wheel:
        names, entry_points = wheel.namelist(), wheel.read(f"{DIST_INFO}/entry_points.txt").decode()
        contents = Counter(info.CRC for info in wheel.infolist() if info.file_size > 1000)
    described = {name for name in names if name.startswith(f"{DIST_INFO}/")}
    assert set(names) - described == _shipped()
    assert described == {
        f"{DIST_INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert not [name for name in names if name.endswith((".nbi", ".nbc", ".pyc"))]
    assert max(contents.values()) == 1, "the same data is in it twice"
    assert "specmargin/py.typed" in names
    assert "[vllm.general_plugins]" in entry_points


def test_the_sdist_holds_what_the_wheel_is_made_of_and_nothing_else(built: Path) -> None:
    root = f"specmargin-{__version__}"
    with tarfile.open(built / f"{root}.tar.gz") as archive:
        names = {member.name.removeprefix(f"{root}/") for member in archive.getmembers() if member.isfile()}
    beside = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO", ".gitignore"}
    assert names - beside == {f"src/{name}" for name in _shipped()}
    assert names >= beside - {".gitignore"}


def test_a_second_build_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """And the wheel from the checkout is the wheel from the sdist."""
    again = _build(tmp_path, "--sdist", "--wheel")
    assert {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def test_the_size_is_what_the_page_says(built: Path) -> None:
    """docs/guide/install.md states it, so that growth is noticed."""
    megabytes = next(built.glob("*.whl")).stat().st_size / 1e6
    stated = re.search(r"wheel itself is ([\d.]+) MB", (ROOT / "docs" / "guide" / "install.md").read_text())
    assert stated
    assert megabytes == pytest.approx(float(stated[1]), rel=0.1)


@pytest.mark.slow
def test_twine_finds_nothing(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_installed_wheel_plans(built: Path, tmp_path: Path) -> None:
    """Away from the checkout, and without the network."""
    wheel = next(built.glob("*.whl"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*install, str(wheel)], check=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.argv = ['specmargin', *sys.argv[2:]]\n"
        "import specmargin; assert specmargin.__file__.startswith(sys.path[0]), specmargin.__file__\n"
        "from specmargin.cli.main import main; main()"
    )
    plan = ["plan", "qwen3.6-35b-a3b", "--gpu", "h200", "--prices", "laws"]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *plan], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Only if 161 sequences at a time are enough: ")
