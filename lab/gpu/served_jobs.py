"""The cells of `served.py`: servers, and arrivals and lengths of every request, drawn beforehand from a seed.

    python -m lab.gpu.served_jobs JOBS.json [--draw N] [--ramp SECONDS] [--small]

--draw: other arrivals and lengths of the same kind; --small: short prompts at low rates, to rehearse on a CPU.

Rates are shares of the load at which an engine without speculation is saturated on such a machine. A trace begins with
the requests that would be under way at that rate, as prompts with the tokens that they have and outputs with those that
are left, so that the batch is of its usual size from the ramp on. Two traces per model are for `calibrated.py` of
lab/validation/cells: prompts in an idle engine, then two batches that shrink, with short and with long contexts; and
prompts beside a small batch, whose kernels take the GPU less time than the host.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.gpu.served import CALIBRATION, CALIBRATION_SECONDS, HOST, HOST_SECONDS
from specmargin.decisions.pricer import Pricer
from specmargin.simulator.engine import EngineSettings
from specmargin.simulator.results import Result
from specmargin.simulator.run import simulate
from specmargin.simulator.serving import Serving
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.simulate.serving import serving_of

BLOCK_TOKENS = 16
MAX_SEQUENCES, BATCHED_TOKENS, MODEL_LENGTH = 256, 8192, 8448
RAMP_SECONDS, WINDOW_SECONDS = 10.0, 18.0  # as many cells have to fit into half an hour
FIRST_DRAW = 33
SHARES = (85, 30, 60)  # percent of saturation, by importance
SPREAD = 0.5  # lengths are uniform within this share of their means
_OVERLOAD, _REQUESTS = 200.0, 1500
_LAUNCH_SECONDS = 65e-6  # per launch: virtual hosts with an H200 took 58 to 76 µs
# Requests per second that such a machine finished when more arrived, the day before (qwen: less, its cache is smaller
# now). Others are predicted.
SATURATION = {("qwen", "chat"): 16.5, ("glm", "chat"): 10.5, ("glm", "code"): 2.03}
IDLE_PROMPTS, IDLE_SECONDS = (700, 1100, 1600, 2400, 4000, 6000, 8000), 0.35  # apart
# Sequences that begin together, tokens of each prompt, first output and more for each next sequence.
STAIRS = ((160, 800, 30, 2), (36, 4400, 40, 6))
# Sequences that decode, and prompts beside them: tokens, and seconds from one to the next.
HOST_BATCH, HOST_PROMPT, HOST_EVERY = 8, 640, 0.15
_JOINING = 0.8  # share of the ramp in which the requests under way arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the catalog and its drafter. `rates`: synthetic acceptance, unconditional, by position."""

    model: str
    weights: str | None
    drafter: str
    rates: tuple[float, ...]
    kv_bytes: float  # of an engine's KV cache

    @property
    def depth(self) -> int:
        return len(self.rates)


# The servers of both models run side by side in 139 GiB. With GLM in bf16 there would be room for 20 sequences of code;
# in FP8 (by blocks, as it is published) the weights of both take 93 GB, the engines themselves about 11.
MODELS = {
    "qwen": Model(
        model="qwen3-30b-a3b", weights=None, drafter="eagle3", rates=(0.72, 0.52, 0.38, 0.28, 0.2), kv_bytes=22e9
    ),
    "glm": Model(
        model="glm-4.7-flash", weights="fp8-block", drafter="mtp", rates=(0.82, 0.66, 0.52, 0.4, 0.3), kv_bytes=11e9
    ),
}
MIXES = {"chat": (1024, 300), "code": (4096, 1024)}  # mean tokens of prompt and output


def request_of(model: Model, mix: tuple[int, int], **given: Any) -> SimulateRequest:
    """As `simulate` takes it: bundled prices, uniform routing, the run's acceptance."""
    prompt, output = mix
    described: dict[str, Any] = {
        "model": model.model,
        "gpu": "h200",
        "engine": "vllm",
        "weights": model.weights,
        "drafter": model.drafter,
        "acceptance": ",".join(map(str, model.rates)),
        "routing": "uniform",
        "depth": model.depth,
        "context": prompt + output // 2,
        "isl": _around(prompt),
        "osl": _around(output),
        "requests": _REQUESTS,
        "max_num_seqs": MAX_SEQUENCES,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "policy": "none",
    }
    return SimulateRequest(**described | given)


def _around(tokens: int) -> dict[str, int]:
    return {"least": round(tokens * (1.0 - SPREAD)), "most": round(tokens * (1.0 + SPREAD))}


def _limited(serving: Serving, kv_bytes: float) -> Serving:
    """With the KV blocks of the server, on such a host."""
    token_bytes = serving.pricer.sequence_bytes(None, 1 << 20) / (1 << 20)
    blocks = int(kv_bytes / token_bytes / BLOCK_TOKENS)
    time = replace(serving.scenario.engine_time, kernel_launch_seconds=_LAUNCH_SECONDS)
    pricer = Pricer(replace(serving.scenario, engine_time=time))
    return replace(serving, pricer=pricer, engine=replace(serving.engine, kv_blocks=blocks))


def saturation(model: Model, mix: tuple[int, int]) -> float:
    """Requests per second that an engine without speculation finishes when far more arrive."""
    serving = _limited(serving_of(request_of(model, mix, qps=_OVERLOAD), Path()), model.kv_bytes)
    finished = np.sort(simulate(serving).requests["finish_seconds"])
    first, last = int(0.25 * finished.size), int(0.75 * finished.size)
    return float((last - first) / (finished[last] - finished[first]))


def _under_way(model: Model, mix: tuple[int, int], rate: float) -> float:
    """Requests in the engine at this rate, by Little's law, without speculation."""
    serving = _limited(serving_of(request_of(model, mix, qps=rate, requests=600), Path()), model.kv_bytes)
    result: Result = simulate(serving)
    return rate * float(np.mean(result.e2e_seconds[150:450]))


def trace(
    mix: tuple[int, int],
    rate: float,
    under_way: int,
    seed: int,
    *,
    draw: int = FIRST_DRAW,
    ramp: float = RAMP_SECONDS,
) -> dict[str, list[Any]]:
    """Columns in order of arrival; the first request arrives at 0."""
    drawn, seconds = np.random.default_rng([seed, draw]), ramp + WINDOW_SECONDS
    prompt, output = (_around(tokens) for tokens in mix)
    joining = np.sort(drawn.uniform(0.0, _JOINING * ramp, under_way))
    # Of the requests under way at some moment, longer ones are more: lengths are drawn in proportion to themselves.
    lengths = drawn.integers(output["least"], output["most"] + 1, 8 * under_way + 8)
    lengths = lengths[drawn.random(lengths.size) < lengths / output["most"]][:under_way]
    past = np.minimum((drawn.random(lengths.size) * lengths).astype(int), lengths - 1)
    first = np.stack(
        [joining[: lengths.size], drawn.integers(prompt["least"], prompt["most"] + 1, lengths.size) + past]
    )
    arriving = np.cumsum(drawn.exponential(1.0 / rate, int(3 * rate * seconds) + 16))
    arriving = arriving[arriving < seconds]
    arrival = np.concatenate([first[0], arriving])
    prompts = np.concatenate([first[1], drawn.integers(prompt["least"], prompt["most"] + 1, arriving.size)])
    outputs = np.concatenate([lengths - past, drawn.integers(output["least"], output["most"] + 1, arriving.size)])
    order = np.argsort(arrival, kind="stable")
    return {
        "at_seconds": [round(float(value), 4) for value in arrival[order] - arrival.min()],
        "prompt_tokens": prompts[order].astype(int).tolist(),
        "output_tokens": outputs[order].astype(int).tolist(),
    }


def table(model: Model) -> list[list[int]]:
    """The plan's table for the shorter mix (that of the longer one has the same depths), up to the largest batch."""
    import specmargin

    prompt, output = MIXES["chat"]
    planned = specmargin.plan(
        model=model.model,
        gpu="h200",
        engine="vllm",
        weights=model.weights,
        drafter=model.drafter,
        acceptance=",".join(map(str, model.rates)),
        routing="uniform",
        depth=model.depth,
        context=prompt + output // 2,
    )
    flags = str(planned.flags())
    found = re.search(r'"num_speculative_tokens_per_batch_size": (\[\[.*?\]\])', flags)
    assert found is not None, flags
    ranges = [entry for entry in json.loads(found[1]) if entry[0] <= MAX_SEQUENCES]
    return [[first, min(last, MAX_SEQUENCES), depth] for first, last, depth in ranges]


def calibration() -> dict[str, Any]:
    prompts = [*IDLE_PROMPTS, *(tokens + 1 for tokens in IDLE_PROMPTS)]  # some are no multiple of four
    rows = [(IDLE_SECONDS * i, tokens, 2) for i, tokens in enumerate(prompts)]
    at = IDLE_SECONDS * (len(rows) + 1)
    for sequences, tokens, first, more in STAIRS:
        rows += [(at + 0.001 * i, tokens, first + more * i) for i in range(sequences)]
        at += 0.5 * (CALIBRATION_SECONDS - IDLE_SECONDS * len(2 * IDLE_PROMPTS))
    return _outside(rows)


def host(prompt: int = HOST_PROMPT, batch: int = HOST_BATCH, output: int = 2000) -> dict[str, Any]:
    decoding = [(0.0, 64, output)] * batch
    prompts = [(at, prompt, 1) for at in np.arange(0.5, HOST_SECONDS - 0.1, HOST_EVERY).round(3).tolist()]
    return _outside(decoding + prompts)


def _outside(rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    names = ("at_seconds", "prompt_tokens", "output_tokens")
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} | {"rate": 0.0}


def jobs(draw: int, ramp: float) -> dict[str, Any]:
    traces: dict[str, Any] = {f"{name}-{CALIBRATION}-0": calibration() for name in MODELS}
    traces |= {f"{name}-{HOST}-0": host() for name in MODELS}
    for name, model in MODELS.items():
        for mix, lengths in MIXES.items():
            saturated = SATURATION.get((name, mix)) or saturation(model, lengths)
            for share in SHARES:
                rate = round(saturated * share / 100.0, 3)
                under_way = max(round(_under_way(model, lengths, rate)), 1)
                found = trace(lengths, rate, under_way, len(traces), draw=draw, ramp=ramp)
                traces[f"{name}-{mix}-{share}"] = {"rate": rate, "saturation": round(saturated, 3), **found}
                print(f"{name}-{mix}-{share}: {rate}/s, {under_way} under way", flush=True)
    models = {name: asdict(model) | {"table": table(model)} for name, model in MODELS.items()}
    return _described(models, traces) | {"ramp_seconds": ramp}


def small_jobs() -> dict[str, Any]:
    """A few requests per second of a few tokens."""
    mixes = {"chat": ((64, 24), 1.0), "code": ((160, 48), 0.4)}
    traces = {
        f"{name}-{mix}-{share}": {"rate": rate * share / 100.0, **trace(lengths, rate * share / 100.0, 2, i)}
        for name in MODELS
        for mix, (lengths, rate) in mixes.items()
        for i, share in enumerate(SHARES)
    }
    short = {"at_seconds": [0.0, 0.8, 1.6, 1.7, 1.8], "prompt_tokens": [600, 700, 40, 40, 40]}
    short |= {"output_tokens": [2, 2, 24, 32, 40], "rate": 0.0}
    traces |= {f"{name}-{CALIBRATION}-0": short for name in MODELS}
    traces |= {f"{name}-{HOST}-0": host(160, 2, 400) for name in MODELS}
    models = {name: asdict(model) | {"table": [[1, 4, 3], [5, 256, 1]]} for name, model in MODELS.items()}
    return _described(models, traces)


def _described(models: dict[str, Any], traces: dict[str, Any]) -> dict[str, Any]:
    limits = EngineSettings(max_num_seqs=MAX_SEQUENCES, max_num_batched_tokens=BATCHED_TOKENS)
    return {
        "ramp_seconds": RAMP_SECONDS,
        "window_seconds": WINDOW_SECONDS,
        "limits": {"max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": limits.max_num_batched_tokens},
        "max_model_len": MODEL_LENGTH,
        "models": models,
        "traces": traces,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("jobs", type=Path)
    options.add_argument("--draw", type=int, default=FIRST_DRAW)
    options.add_argument("--ramp", type=float, default=RAMP_SECONDS)
    options.add_argument("--small", action="store_true")
    given = options.parse_args()
    made = small_jobs() if given.small else jobs(given.draw, given.ramp)
    given.jobs.parent.mkdir(parents=True, exist_ok=True)
    given.jobs.write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
