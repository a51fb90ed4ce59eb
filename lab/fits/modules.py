"""Pack the measured times of whole attention modules into the catalog: what a sum of their parts never exceeds.

python -m lab.fits.modules            # needs: pip install 'specmargin[tables]'
python -m lab.fits.modules --check    # packs again and reports what would change
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.progress import track

from lab import CATALOG
from lab.tables.modules import measured_times
from lab.terminal import parser, run
from specmargin.catalog.module_bounds import FILE, packed
from specmargin.prices.kernels import store

TARGET = CATALOG / FILE


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--check", action="store_true", help="compare with the shipped times instead of writing them")
    arguments = options.parse_args()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for gpu in track(store.SYSTEMS, description="packing"):
        times = measured_times(gpu)
        if times:
            arrays[f"{gpu}.index"], arrays[f"{gpu}.times"] = packed(times)
    if arguments.check:
        print("unchanged" if _is_shipped(arrays) else "would change")
    else:
        np.savez_compressed(TARGET, allow_pickle=False, **arrays)


def _is_shipped(arrays: dict[str, np.ndarray[Any, Any]]) -> bool:
    with np.load(TARGET) as shipped:
        return set(shipped) == set(arrays) and all(np.array_equal(shipped[name], arrays[name]) for name in arrays)


if __name__ == "__main__":
    run(main)
