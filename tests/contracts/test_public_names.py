"""The public names are few, importable, and cost nothing until used."""

from __future__ import annotations

import subprocess
import sys

import specmargin


def test_every_public_name_is_importable() -> None:
    for name in specmargin.__all__:
        assert getattr(specmargin, name) is not None


def test_all_and_the_lazy_table_agree() -> None:
    assert set(specmargin.__all__) == set(specmargin._MODULE_BY_NAME) | {"__version__"}
    assert set(specmargin.__all__) <= set(dir(specmargin))


def test_unknown_names_raise_as_modules_do() -> None:
    assert not hasattr(specmargin, "nonsense")


def test_importing_the_package_imports_no_numpy() -> None:
    code = "import sys, specmargin; sys.exit('numpy' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
