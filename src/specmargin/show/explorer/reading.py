"""Uploaded files, read within limits: what each one costs is known before memory is taken for it.

    python -m specmargin.show.explorer.reading PATH     a bank, in a process that may end without harm: one JSON object

Configurations and profiles are small and read in a thread. Banks are read first in a process of their own,
which has limits of time and memory: a few kilobytes of Parquet may expand to gigabytes, or stop the process.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from specmargin.architecture.reader import load_architecture
from specmargin.architecture.types import Architecture
from specmargin.errors import InputError, SpecmarginError, needs_extra

MOST_ROUNDS = 500_000
MOST_CONFIDENCES = 8_000_000
MOST_CATEGORIES, LONGEST_CATEGORY = 200, 80
MOST_PROBABILITIES = 2_000_000  # of a routing profile; every scenario in the server's cache may hold as many
#: Of processor time, and by the clock on a busy machine.
SECONDS, MOST_SECONDS = 20, 60.0
#: Of the process that reads a bank. What it may reserve is more than it may use: Polars reserves 1 GB to begin with.
PEAK_BYTES, RESERVED_BYTES = 1 << 30, 6 << 30
_ENDED = "takes more than {0} s or {1} GB of memory to read; profile it with `specmargin profile acceptance`"


class Read(NamedTuple):
    """What a file holds: `numbers` is its weight in memory."""

    summary: str
    categories: tuple[str, ...] = ()
    numbers: int = 0


def read_config(path: Path) -> Read:
    return Read(described(load_architecture(path)))


def described(architecture: Architecture) -> str:
    pools = architecture.pools
    experts = f"{pools[0].experts_per_token} of {pools[0].experts} experts per token" if pools else "dense"
    weights = ", ".join(architecture.weight_precisions)
    return f"{architecture.name}: {architecture.parameters / 1e9:,.1f} B parameters, {experts}, weights {weights}"


def read_routing_profile(path: Path) -> Read:
    from specmargin.routing.schema import read_routing  # noqa: PLC0415 (pydantic only where a file is read)

    profile = read_routing(path, most=MOST_PROBABILITIES)
    summary = f"routing of {profile.experts_per_token} of {profile.experts} experts in {profile.layers} layers"
    _check_categories(profile.categories, path)
    return Read(summary, tuple(profile.categories), profile.probabilities)


def read_acceptance(path: Path) -> Read:
    """A profile, or a bank of rounds."""
    if path.suffix != ".json":
        return _in_process(path)
    from specmargin.acceptance.schema import read_acceptance as read_profile  # noqa: PLC0415

    profile = read_profile(path)
    _check_categories(profile.categories, path)
    return Read(f"acceptance profile {profile.name[:60]}, {len(profile.categories)} categories", (*profile.categories,))


READERS: dict[str, Callable[[Path], Read]] = {
    "config": read_config,
    "acceptance": read_acceptance,
    "routing": read_routing_profile,
}


# --- banks, in a process of their own ---


def _in_process(path: Path) -> Read:
    if path.suffix == ".parquet":
        with needs_extra():
            import polars  # noqa: F401, PLC0415 (an extra, which the process needs)
    _check_text(path)
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "specmargin.show.explorer.reading", str(path)]
    ended = InputError(f"{path}: {_ENDED.format(SECONDS, PEAK_BYTES >> 30)}")
    try:
        done = subprocess.run(command, capture_output=True, timeout=MOST_SECONDS, check=False, env=environment)
        said = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise ended from None
    if "error" in said:
        raise InputError(said["error"])
    if said["peak_bytes"] > PEAK_BYTES:
        raise ended
    return Read(said["summary"], tuple(said["categories"]), said["numbers"])


def _read_bank(path: Path) -> Read:
    from specmargin.acceptance.bank import read_bank  # noqa: PLC0415 (an extra)

    _check_table(path)
    rounds = read_bank([path])
    _check("rounds", rounds.count, MOST_ROUNDS, path)
    _check("confidences", rounds.count * rounds.depth, MOST_CONFIDENCES, path)
    _check_categories(rounds.categories, path)
    confidences = "with confidences" if rounds.has_confidence else "without confidences"
    summary = f"{rounds.count:,} rounds, {len(rounds.categories)} categories, {confidences}"
    return Read(summary, tuple(rounds.categories), rounds.count * (rounds.depth + 6))


def _check_text(path: Path) -> None:
    """A line of CSV is a round; a line of JSON has lists with a number for each of its rounds."""
    if path.suffix != ".parquet":
        content = path.read_bytes()
        _check("lines", content.count(b"\n"), MOST_ROUNDS, path)
        _check("values", content.count(b","), 2 * MOST_CONFIDENCES, path)


def _check_table(path: Path) -> None:
    """By its footer."""
    if path.suffix == ".parquet":
        import polars as pl  # noqa: PLC0415 (an extra)

        try:
            rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
        except Exception as error:  # Polars raises many kinds for a file that is cut short or not Parquet
            raise InputError(f"{path}: not a readable Parquet file ({type(error).__name__})") from None
        _check("rounds", rows, MOST_ROUNDS, path)


def _check_categories(names: Collection[str], path: Path) -> None:
    _check("categories", len(names), MOST_CATEGORIES, path)
    _check("characters in the name of a category", max(map(len, names), default=0), LONGEST_CATEGORY, path)


def _check(what: str, count: int, most: int, path: Path) -> None:
    if count > most:
        raise InputError(
            f"{path}: has {count:,} {what}; the page reads {most:,} at most: give it a part, or the profile of the "
            f"whole (`specmargin profile acceptance`)"
        )


def main(path: str) -> None:
    for kind, limit in ((resource.RLIMIT_AS, RESERVED_BYTES), (resource.RLIMIT_CPU, SECONDS)):
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    try:
        read = _read_bank(Path(path))
    except SpecmarginError as error:
        print(json.dumps({"error": str(error)}))
    else:
        print(json.dumps(read._asdict() | {"peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """Of this process. `ru_maxrss` would count the server that started it; 0 where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found.group(1)) if found else 0


if __name__ == "__main__":
    main(sys.argv[1])
