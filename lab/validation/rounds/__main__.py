"""Predicted rounds of vLLM on an H200, drafting included, against measured ones; each model by a fit without it.

python -m lab.validation.rounds
"""

from __future__ import annotations

from lab.terminal import console, run
from lab.validation.rounds.report import report

if __name__ == "__main__":
    run(lambda: report(console()), __doc__)
