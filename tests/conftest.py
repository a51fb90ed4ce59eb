"""How the tests run: their order, which of them are slow, and functions compiled beforehand."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]

# The catalog of whoever runs the tests is not part of them.
os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir()) / "specmargin-tests" / "no-configuration")
os.environ.pop("SPECMARGIN_CATALOG", None)

_WARM_UP = pytest.StashKey["subprocess.Popen[bytes]"]()

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


# Files that take longest: with `-n` they start first, so that a run ends with short ones on every core. The first three
# need nothing compiled, or late: `tests/warm_up.py` compiles beside them.
LONGEST = (
    "contracts/test_matrix.py",
    "golden/test_golden.py",
    "published/test_served_rows.py",
    "published/test_reference_acceptance.py",
    "lab/test_modules.py",
    "unit/test_service.py",
    "unit/test_sweep.py",
    "contracts/test_install.py",
    "contracts/test_engine_formats.py",
    "explorer/test_openapi.py",
    "explorer/test_site.py",
    "lab/test_page_loading.py",
    "contracts/test_requests.py",
    "explorer/test_browser.py",
    "unit/test_cli.py",
    "explorer/test_page.py",
    "properties/test_simulator.py",
    "published/test_simulated_grid.py",
    "explorer/test_api.py",
    "explorer/test_report.py",
    "unit/test_figures.py",
    "unit/test_site.py",
    "published/test_simulated_day.py",
    "unit/test_controller.py",
    "contracts/test_packaging.py",
)
# Files that `make test-fast` leaves out: they install, start servers or other processes, or compute for long.
SLOW = (
    "contracts/test_install.py",
    "contracts/test_live_page.py",
    "contracts/test_matrix.py",
    "contracts/test_packaging.py",
    "contracts/test_questions.py",
    "contracts/test_readme.py",
    "contracts/test_requests.py",
    "properties/test_busiest_rank.py",
    "properties/test_simulator.py",
    "unit/test_cli.py",
    "unit/test_design.py",
    "unit/test_explore_cli.py",
    "unit/test_figures.py",
    "unit/test_habits.py",
    "unit/test_live_capture.py",
    "unit/test_live_sglang.py",
    "unit/test_live_sglang_plan.py",
    "unit/test_measure.py",
    "unit/test_reference_profiles.py",
    "unit/test_routing_captures.py",
    "unit/test_simulate_cli.py",
    "unit/test_service.py",
    "unit/test_site.py",
    "unit/test_sweep.py",
    "unit/test_validate.py",
    "unit/test_without_compilation.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Once per run: compiled functions are cached by their own file, and would outlive a change of what they call."""
    if hasattr(config, "workerinput"):
        return
    stale = _drop_stale_compiled()
    if stale and config.getoption("numprocesses", None):
        command = [sys.executable, "-m", "tests.warm_up"]
        config.stash[_WARM_UP] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (process := config.stash.get(_WARM_UP, None)) is not None:
        process.terminate()  # has ended long ago, unless the run was short
        process.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    slow = {ROOT / "tests" / name for name in SLOW}
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)


def _drop_stale_compiled() -> bool:
    """Whether there was anything to drop, or nothing compiled yet."""
    texts = [path.read_bytes() for path in sorted((ROOT / "src").rglob("*.py"))]
    compiled = [text for text in texts if b"compiler import" in text or b"import numba" in text]
    digest = hashlib.sha256(b"".join(compiled)).hexdigest()
    kept = ROOT / "src" / "specmargin" / "__pycache__" / "compiled.sha256"  # `.cache` may be shared by checkouts
    if kept.is_file() and kept.read_text() == digest:
        return False
    for place, ending in product(("src", "tests"), ("*.nbi", "*.nbc")):
        for path in (ROOT / place).rglob(ending):
            path.unlink(missing_ok=True)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(digest)
    return True


# --- a page and a browser, of which a process has one each ---


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a running explorer."""
    from tests.explorer.conftest import running  # noqa: PLC0415

    with running() as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from tests.explorer.conftest import launched  # noqa: PLC0415

    with launched() as chromium:
        yield chromium
