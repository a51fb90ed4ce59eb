"""Put the real output of `make plan` on the README's first screen. Run it whenever a price changes: make readme."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    command = re.search(r"^plan:.*\n\t\$\(BIN\)/specmargin (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if command is None:
        sys.exit("the Makefile has no plan")
    arguments = [sys.executable, "-m", "specmargin.cli.main", *shlex.split(command[1])]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    lines = "\n".join(line.rstrip() for line in shown.rstrip().splitlines())
    readme = ROOT / "README.md"
    block = re.compile(r"(```console\n\$ make plan\n).*?(\n```)", re.DOTALL)
    readme.write_text(block.sub(lambda match: match[1] + lines + match[2], readme.read_text(), count=1))


if __name__ == "__main__":
    main()
