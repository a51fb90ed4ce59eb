"""Fetch Python files of vLLM's and SGLang's releases, which tests and `lab.live.releases` read beside the plug-in.

    python scripts/fetch_engines.py

`make test` runs this first: the releases of `docs/results/releases.csv`, and older ones that tests name. Only the files
in `PARTS` are downloaded (`package_index.py`), into `.cache/ENGINE-VERSION/ENGINE/`, once; a run that was interrupted
continues. Without an index the tests that read these files are skipped with a message, or fail if CI is set.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from package_index import FAILURES, find_wheel, open_wheel, unpack, wheels

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "results" / "releases.csv"
#: That tests name: SGLang's first with slots by batch size, with steps of 0, with DSpark; then the newest.
NAMED = (("sglang", "0.5.13"), ("sglang", "0.5.14"), ("sglang", "0.5.16"), ("sglang", "0.5.23"))
#: Files and folders: those of the plug-in's parts and their base classes, and what other tests read.
PARTS = {
    "vllm": (
        "vllm/__init__.py",
        "vllm/version.py",
        "vllm/_version.py",
        "vllm/config/",
        "vllm/engine/arg_utils.py",
        "vllm/logger.py",
        "vllm/model_executor/custom_op.py",
        "vllm/model_executor/layers/fused_moe/layer.py",
        "vllm/model_executor/layers/fused_moe/router/",
        "vllm/model_executor/layers/fused_moe/runner/",
        "vllm/platforms/",
        "vllm/sampling_params.py",
        "vllm/v1/attention/backend.py",
        "vllm/v1/core/sched/",
        "vllm/v1/engine/core.py",
        "vllm/v1/executor/abstract.py",
        "vllm/v1/metrics/prometheus.py",
        "vllm/v1/outputs.py",
        "vllm/v1/request.py",
        "vllm/v1/serial_utils.py",
        "vllm/v1/spec_decode/",
        "vllm/v1/utils.py",
        "vllm/v1/worker/",
    ),
    "sglang": (
        "sglang/__init__.py",
        "sglang/version.py",
        "sglang/_version.py",
        "sglang/benchmark/serving.py",
        "sglang/srt/arg_groups/",
        "sglang/srt/distributed/",
        "sglang/srt/environ.py",
        "sglang/srt/observability/metrics_collector.py",
        "sglang/srt/plugins/",
        "sglang/srt/runtime_context.py",
        "sglang/srt/server_args.py",
        "sglang/srt/speculative/",
        "sglang/srt/utils/",
    ),
}
_AT_ONCE = 4  # releases
_FINAL = re.compile(r"\d+(\.\d+)+(\.post\d+)?")  # no release candidates

Name = tuple[str, str]  # engine and release


def package(engine: str, version: str) -> Path:
    """The folder of that release's files, fetched or not."""
    return ROOT / ".cache" / f"{engine}-{version}" / engine


def is_fetched(engine: str, version: str) -> bool:
    marker = package(engine, version).parent / "parts"
    return marker.is_file() and marker.read_text() == _parts_text(engine)


def wanted() -> list[Name]:
    """Those of the committed table, then those that tests name."""
    listed = csv.DictReader(TABLE.read_text().splitlines()) if TABLE.is_file() else []
    return list(dict.fromkeys([*((row["engine"], row["release"]) for row in listed), *NAMED]))


def released(engine: str, since: date) -> dict[str, date]:
    """The index's releases from that day on, newest first, with the day of their first wheel."""
    days: dict[str, date] = {}
    for wheel in wheels(engine):
        if wheel.day is not None and _FINAL.fullmatch(wheel.version):
            days[wheel.version] = min(wheel.day, days.get(wheel.version, wheel.day))
    recent = (item for item in days.items() if item[1] >= since)
    return dict(sorted(recent, key=lambda item: item[1], reverse=True))


def fetch(names: Sequence[Name]) -> bool:
    """Those that are not there, with a line for each; False where any could not be had."""
    missing = [name for name in names if not is_fetched(*name)]
    try:
        for engine in {engine for engine, _ in missing}:  # without an index every release would wait for it
            wheels(engine)
    except FAILURES as error:
        print(f"No package index ({error}): {len(missing)} releases of engines are not fetched.", flush=True)
        return False
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(_fetch, *name): name for name in missing}
        for number, done in enumerate(as_completed(running), start=1):
            print(f"{number} of {len(missing)}: {' '.join(running[done])}: {_outcome(done)}", flush=True)
    return all(is_fetched(*name) for name in names)


def _outcome(done: Future[int]) -> str:
    try:
        return f"{done.result() / 1e6:.1f} MB"
    except FAILURES as error:
        return f"not available ({error})"


def _fetch(engine: str, version: str) -> int:
    """Bytes of the unpacked files."""
    folder = package(engine, version).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as scratch, open_wheel(find_wheel(engine, version)) as archive:
        unpacked = Path(scratch) / "unpacked"
        files = [file for file in archive.infolist() if file.filename.startswith(PARTS[engine])]
        files = [file for file in files if file.filename.endswith(".py")]
        unpack(archive, unpacked, files)
        (unpacked / "parts").write_text(_parts_text(engine))
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return sum(file.file_size for file in files)


def _parts_text(engine: str) -> str:
    return "".join(f"{part}\n" for part in PARTS[engine])


def main() -> int:
    if not fetch(wanted()):
        print("Tests that read what is not available are skipped, or fail if CI is set.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
