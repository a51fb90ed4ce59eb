"""A vLLM server under load on this CPU, request by request and step by step, to hold `simulate` against.

    python -m lab.live.served OUT [--prices FILE] [--minutes 15]
    python -m lab.validation.cells OUT                                what `simulate` predicts for these cells

The cells of `lab/gpu/served.py` in small, with the random pair of `lab/live/models.py`: a length mix, a share of the
predicted saturation and a contestant. `measure vllm` prices the steps of this machine before, unless a file is given;
acceptance was measured for `doctor`. OUT gets these prices, the configurations of both models and a file per cell.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.gpu.served_jobs import trace
from lab.live import servers
from lab.live.cells import FLUSH_SECONDS, Server, record, said, wait_idle, write_cell
from lab.live.cpu import cpu_dtype
from lab.live.doctor import ACCEPTANCE, ONE_CORE
from lab.live.measuring import ENVIRONMENT, measure_arguments, specmargin
from lab.live.models import Pair, random_pair
from lab.live.pages import without_paths
from lab.live.step_log import DEPTHS, FOLDER
from lab.live.trace_client import Planned, send_all
from lab.terminal import parser, run

DEPTH, SEQUENCES, BATCHED_TOKENS, MODEL_LENGTH = 3, 16, 512, 448
MIXES = {"chat": (96, 48), "code": (192, 96)}  # mean tokens of prompt and output
# By importance. Saturation is that of prices measured for the engine alone: an API server on the other core adds to it.
TRACES = (("chat", 60), ("chat", 30), ("code", 60))
CONTESTANTS = {True: ("table", f"fixed-{DEPTH}"), False: ("none",)}
RAMP_SECONDS, WINDOW_SECONDS = 8.0, 24.0
PRICES = "prices.json"
# One process for engine and model, as `measure vllm` has it. By default vLLM's CPU build has two, and on two cores that
# the client and the API server need as well, tokens took twice as long as predicted (docs/results/served.md).
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def prepare(out: Path) -> dict[str, Any]:
    """The model as cells name it, with files relative to their folder, and the traces."""
    for name in ("target", "draft"):
        shutil.copytree(ONE_CORE / name, out / name, dirs_exist_ok=True)
    shutil.copyfile(ONE_CORE / "core.toml", out / "core.toml")
    files = {"model": "target", "drafter": "model:draft", "gpu": "core.toml", "prices": PRICES}
    model = files | {"weights": None, "rates": list(ACCEPTANCE[:DEPTH]), "table": planned_table(out)}
    return {"model": model, "traces": traces(out)}


def arguments(pair: Pair, *, speculating: bool) -> dict[str, Any]:
    given: dict[str, Any] = {
        "model": str(pair.target),
        "served_model_name": "m",
        "dtype": cpu_dtype(),
        "enforce_eager": True,
        "max_model_len": MODEL_LENGTH,
        "max_num_seqs": SEQUENCES,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "scheduler_cls": "lab.live.step_log.SyncStepLog",
        "distributed_executor_backend": "uni",
    }
    if speculating:
        drafter = {"method": "draft_model", "model": str(pair.draft), "num_speculative_tokens": DEPTH}
        drafter |= {"num_speculative_tokens_per_batch_size": [[1, SEQUENCES, DEPTH]]}
        given["speculative_config"] = drafter
    return given


def measured_prices(pair: Pair, out: Path) -> None:
    """About three minutes."""
    grid = {"batches": (1, 4, 8, 16), "depths": range(1, DEPTH + 1), "context": 128, "max_model_len": MODEL_LENGTH}
    specmargin(*measure_arguments(pair.folder, out, **grid), "--repeats", "2", "--steps", "6")  # type: ignore[arg-type]


def planned_table(out: Path) -> list[list[int]]:
    """The depth by batch that `plan` chooses with these prices."""
    acceptance = ("--acceptance", ",".join(map(str, ACCEPTANCE[:DEPTH])), "--depth", str(DEPTH), "--context", "128")
    plan = json.loads(specmargin("plan", *_scenario(out), *acceptance, "--json"))
    return [list(entry) for entry in plan["schedule"]]


def _scenario(out: Path) -> list[str]:
    files = {"--gpu": out / "core.toml", "--prices": out / PRICES, "--drafter": f"model:{out / 'draft'}"}
    named = [str(part) for pair in files.items() for part in pair]
    return [str(out / "target"), *named, "--routing", "uniform"]


def saturation(out: Path, mix: tuple[int, int]) -> float:
    """Requests per second that `simulate` serves without speculation when far more arrive."""
    load = ("--qps", "500", "--requests", "1500", "--isl", str(mix[0]), "--osl", str(mix[1]), "--policy", "none")
    limits = ("--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(BATCHED_TOKENS))
    given = ("--acceptance", str(ACCEPTANCE[0]), *load, *limits, "--json")
    answer = json.loads(specmargin("simulate", *_scenario(out), *given))
    return float(answer["goodput_tokens_per_second"]) / mix[1]


def traces(out: Path) -> dict[str, dict[str, Any]]:
    """By mix and share, with the requests that are under way at the start: half of the limit at saturation."""
    drawn: dict[str, dict[str, Any]] = {}
    saturated = {mix: saturation(out, lengths) for mix, lengths in MIXES.items()}
    for seed, (mix, share) in enumerate(TRACES):
        rate = round(saturated[mix] * share / 100.0, 3)
        under_way = max(SEQUENCES * share // 200, 1)
        columns = trace(MIXES[mix], rate, under_way, seed)
        drawn[f"cpu-{mix}-{share}"] = {"rate": rate, "saturation": round(saturated[mix], 3), **columns}
    return drawn


def play(
    job: dict[str, Any], pair: Pair, out: Path, scratch: Path, *, speculating: bool, until: float
) -> Iterator[str]:
    """The cells of one server, each written as it ends."""
    given, folder = arguments(pair, speculating=speculating), scratch / ("spec" if speculating else "plain")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = ENVIRONMENT | ONE_PROCESS | {"VLLM_PLUGINS": "", "PYTHONPATH": path, FOLDER: str(folder)}
    with servers.served(given, folder=folder, environment=environment) as server:
        place = Server(url=server.url, folder=folder)
        _warm_up(place, _vocabulary(pair))
        for name, drawn in job["traces"].items():
            for contestant in CONTESTANTS[speculating]:
                if time.monotonic() + RAMP_SECONDS + WINDOW_SECONDS > until:
                    yield f"{name}-{contestant}: no time left for it"
                    continue
                about = {"cell": f"{name}-{contestant}", "model": job["model"], "trace": name, "contestant": contestant}
                about |= {"rate": drawn["rate"], "saturation": drawn["saturation"], "arguments": given}
                about |= {"limits": {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": BATCHED_TOKENS}}
                yield said(_play(place, about, drawn, pair, out))


def _play(place: Server, about: dict[str, Any], drawn: Mapping[str, Any], pair: Pair, out: Path) -> dict[str, Any]:
    wait_idle(place.url)
    (place.folder / DEPTHS).write_text(json.dumps(depths_by_batch(about["contestant"], about["model"]["table"])))
    time.sleep(FLUSH_SECONDS)
    vocabulary, seconds = _vocabulary(pair), {"ramp_seconds": RAMP_SECONDS, "window_seconds": WINDOW_SECONDS}
    played = about | record(place, drawn, vocabulary=vocabulary, **seconds)
    played["load_average"] = round(os.getloadavg()[0], 2)  # about 2 if nothing else runs
    recorded = without_paths(played, pair.folder)
    write_cell(out, recorded)
    return recorded


def depths_by_batch(contestant: str, table: list[list[int]]) -> list[int]:
    """By sequences from 0 on, as the engine reads them while it is idle."""
    if contestant.startswith("fixed-"):
        table = [[1, SEQUENCES, int(contestant.removeprefix("fixed-"))]]
    found = [[depth for first, last, depth in table if first <= batch <= last] for batch in range(SEQUENCES + 1)]
    return [depths[0] if depths else 0 for depths in found]


def _warm_up(place: Server, vocabulary: int) -> None:
    """The first steps of each shape take longer."""
    planned = [
        Planned(at_seconds=0.05 * i, prompt_tokens=(64, 192)[i % 2], output_tokens=16 + 4 * i) for i in range(12)
    ]
    _, answers = send_all(place.url, "m", planned, vocabulary=vocabulary, seconds=6.0, seed=str(time.time()))
    if failures := [answer.failure for answer in answers if answer.failure]:
        raise RuntimeError(f"the server does not answer: {failures[0]}")


def _vocabulary(pair: Pair) -> int:
    return int(json.loads((pair.target / "config.json").read_text())["vocab_size"])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--prices", type=Path, help="of an earlier `measure vllm` on this machine")
    options.add_argument("--minutes", type=float, default=15.0, help="no cell begins that would end later")
    chosen = options.parse_args(sys.argv[1:])
    out, until = chosen.out.resolve(), time.monotonic() + 60.0 * chosen.minutes
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="served-") as scratch:
        pair = random_pair(Path(scratch) / "pair")
        if chosen.prices is None:
            print("Measuring prices (specmargin measure vllm) …", flush=True)
            measured_prices(pair, out / PRICES)
        elif chosen.prices.resolve() != out / PRICES:
            shutil.copyfile(chosen.prices, out / PRICES)
        job = prepare(out)
        for speculating in (True, False):
            for line in play(job, pair, out, Path(scratch), speculating=speculating, until=until):
                print(line, flush=True)


if __name__ == "__main__":
    run(main)
