"""Find or install what the browser tests need: Chromium and axe-core.

`make test` runs this first. Chromium comes from the distribution (apt-get, as root), axe-core from npm into `.cache/`.
Where neither is possible the tests are skipped with a message, or fail if CI is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "axe"
AXE = CACHE / "node_modules" / "axe-core" / "axe.min.js"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """SPECMARGIN_CHROMIUM, or the first browser on the path."""
    configured = os.environ.get("SPECMARGIN_CHROMIUM")
    return configured or next((path for name in BROWSERS if (path := shutil.which(name))), None)


def axe() -> Path | None:
    return AXE if AXE.is_file() else None


def install_chromium() -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print("no Chromium found, and it can be installed only as root with apt-get; set SPECMARGIN_CHROMIUM")
        return
    print("installing chromium with apt-get ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "chromium", "fonts-dejavu-core"]):
        subprocess.run(["apt-get", *arguments], env=environment, stdout=subprocess.DEVNULL, check=False)


def install_axe() -> None:
    npm = shutil.which("npm")
    if npm is None:
        print("no npm found: the accessibility test needs it once, to fetch axe-core")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    print("fetching axe-core with npm ...")
    subprocess.run([npm, "install", "--silent", "--no-save", "--prefix", str(CACHE), "axe-core@4"], check=False)


def main() -> int:
    if chromium() is None:
        install_chromium()
    if axe() is None:
        install_axe()
    print(f"browser: {chromium() or 'none'}; axe-core: {'installed' if axe() else 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
