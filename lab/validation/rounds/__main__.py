"""Predicted rounds of vLLM on an H200, drafting included, against measured ones; each model by a fit without it.

python -m lab.validation.rounds
"""

from __future__ import annotations

from lab.terminal import console, parser, run
from lab.validation.rounds.report import report


def main() -> None:
    parser(__doc__).parse_args()
    report(console())


if __name__ == "__main__":
    run(main)
