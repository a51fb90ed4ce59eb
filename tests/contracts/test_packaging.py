"""A wheel and an sdist, built and installed as a user would have them: nothing of catalog or page is missing."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from specmargin._version import __version__
from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "specmargin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a copy of what git would give: build output of an earlier run is not part of it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _shipped() -> set[str]:
    """Every file of the package but what running it leaves there."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"specmargin/{path.relative_to(PACKAGE).as_posix()}" for path in files}


def test_the_wheel_holds_the_whole_package(built: Path) -> None:
    with ZipFile(built / f"specmargin-{__version__}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"specmargin-{__version__}.dist-info/")}
        entry_points = wheel.read(f"specmargin-{__version__}.dist-info/entry_points.txt").decode()
    assert names == _shipped()
    assert "specmargin/py.typed" in names
    assert "[vllm.general_plugins]" in entry_points


def test_the_sdist_holds_what_the_wheel_is_made_of(built: Path) -> None:
    root = f"specmargin-{__version__}"
    with tarfile.open(built / f"{root}.tar.gz") as archive:
        names = {name.removeprefix(f"{root}/") for name in archive.getnames()}
    assert {f"src/{name}" for name in _shipped()} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= names


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
    assert done.stdout.startswith("Only up to batch ")
