"""The laboratory: everything that shows how right the predictions are. It is no part of the package; see README.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "lab" / "data"
CATALOG = ROOT / "src" / "specmargin" / "catalog"
