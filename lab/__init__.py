"""The laboratory: everything that shows how right the predictions are. It is no part of the package; see README.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CATALOG = ROOT / "src" / "specmargin" / "catalog"
DATA = ROOT / "lab" / "data"  # sources: lab/data/sources.md
PUBLISHED = DATA / "published"
SPEEDUPS = PUBLISHED / "speedups" / "points.csv"
MORE_SPEEDUPS = PUBLISHED / "speedups-2" / "points.csv"  # of other sources, collected later
ONE_BOX = ("F21", "F26", "F33")  # of those: llama.cpp, Apple and host memory, judged apart
REFERENCE_BANK = DATA / "reference-bank"
