"""vLLM servers under load on a GPU, request by request and step by step, to hold `simulate` against.

    python -m lab.gpu.served start spec|plain [--small]    a server of each model, side by side, in the background
    python -m lab.gpu.served wait [--seconds 330]          until they answer; then one short load each, to warm up
    python -m lab.gpu.served calibrate OUT                 OUT/calibration: what corrects prices of kernels
    python -m lab.gpu.served play OUT [CELL ...] [--seconds 560]    those that no earlier command has played
    python -m lab.gpu.served stop

Servers outlive the command that starts them; what is known of them is in --state (/tmp/served). A cell is
MODEL-MIX-SHARE-CONTESTANT (qwen-chat-85-table): a trace of JOBS.json (`served_jobs.py` makes it), played for a ramp
and a window; then the connections are closed, which aborts what is left. Before and after each cell, prompts beside a
small batch show how fast the host launches kernels just then (`host`): that changes within minutes. Contestants are
`none` on the servers without speculation (`start plain`), and `table` or `fixed-3` on those with it. OUT gets
CELL.json.gz as each ends. Each engine has a core of its own (`pinning.py`). Everything that is not named in
`arguments` is vLLM's default: async scheduling, prefix caching (prompts are random, so it finds nothing), chunked
prefill, HTTP streams with detokenisation. Weights are dummies, acceptance is synthetic, experts are drawn uniformly.
Only vLLM and the standard library are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab import DATA, ROOT
from lab.gpu.doctor import shrink
from lab.gpu.jobs import UNIFORM, VOCABULARY, head_folder, quantized
from lab.gpu.pinning import pin
from lab.live import servers
from lab.live.cells import FLUSH_SECONDS, Server, record, said, wait_idle, write_cell
from lab.live.cpu import cpu_dtype
from lab.live.measuring import ENVIRONMENT
from lab.live.pages import page, without_paths
from lab.live.step_log import DEPTHS, FOLDER
from lab.live.trace_client import Planned, send_all
from lab.live.word_tokenizer import write_tokenizer

JOBS = DATA / "measurements" / "served-h200" / "jobs.json"
CONTESTANTS = {"spec": ("table", "fixed-3"), "plain": ("none",)}
LATER = ("fixed-3",)  # contestants that are played when they are named
MIXES_BY_IMPORTANCE = ("chat", "code")
CALIBRATION, CALIBRATION_SECONDS = "calibrate", 26.0
HOST, HOST_SECONDS = "host", 3.0
OUTSIDE = (CALIBRATION, HOST)  # traces of no cell
# Fewer than vLLM's 51, which take a minute more to capture; up to its largest.
SIZES = [1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384]
SIZES += [448, 512]
SMALL_VOCABULARY = 4096
# vLLM's tuned tiles of experts are by positions, and Triton compiles each of them once for even and once for odd
# numbers: 1.1 to 1.9 s, in which nothing else is served. The load below meets only some of them.
TILE_PROMPTS = [tokens + odd for tokens in (600, 1024, 1536, 2048, 3072, 4096) for odd in (0, 1)]


# --- servers ---


def arguments(name: str, job: dict[str, Any], folder: Path, *, speculating: bool, small: bool) -> dict[str, Any]:
    """Of the server of one model."""
    model = job["models"][name]
    precision = "bf16" if small or model["weights"] is None else model["weights"]
    path = Path(quantized(folder, precision, None, model["model"]))
    drafter: dict[str, Any] = {"method": model["drafter"]}
    if model["drafter"] == "eagle3":
        drafter["model"] = head_folder(folder, model["model"], None)
    if small:
        shrink(path, *(Path(drafter[key]) for key in ("model",) if key in drafter))
    write_tokenizer(path, SMALL_VOCABULARY if small else VOCABULARY[model["model"]])
    given: dict[str, Any] = {
        "model": str(path),
        "served_model_name": "m",
        "load_format": "dummy",
        "max_model_len": job["max_model_len"] if not small else 1024,
        "max_num_seqs": job["limits"]["max_num_seqs"] if not small else 16,
        "scheduler_cls": f"lab.live.step_log.{'SyncStepLog' if small else 'StepLog'}",
    }
    if speculating:
        given["speculative_config"] = drafter | _speculation(model, small=small)
    if small:
        return given | {"dtype": cpu_dtype(), "enforce_eager": True}
    # The share of memory is only checked against what is free at the start.
    memory = {"kv_cache_memory_bytes": int(model["kv_bytes"]), "gpu_memory_utilization": 0.05}
    return given | memory | {"compilation_config": {"cudagraph_capture_sizes": SIZES}}


def _speculation(model: dict[str, Any], *, small: bool) -> dict[str, Any]:
    depth = 3 if small else len(model["rates"])
    named = {"num_speculative_tokens": depth, "num_speculative_tokens_per_batch_size": model["table"]}
    if small:  # vLLM's CPU build has no synthetic acceptance
        return named
    return named | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": model["rates"]}


def start(options: argparse.Namespace, job: dict[str, Any]) -> None:
    if (options.state / "servers.json").exists():
        sys.exit(f"{options.state / 'servers.json'}: servers are running; `stop` ends them")
    shutil.rmtree(options.state / "logs", ignore_errors=True)
    environment = (ENVIRONMENT if options.small else UNIFORM) | {"VLLM_PLUGINS": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    running: dict[str, Any] = {}
    for name in options.models:
        given = arguments(name, job, options.state / "models", speculating=options.kind == "spec", small=options.small)
        folder = options.state / "logs" / name
        log_steps = {FOLDER: str(folder)}
        server = servers.start(given, folder=folder, environment=environment | log_steps)
        running[name] = {
            "url": server.url,
            "pid": server.process.pid,
            "kind": options.kind,
            "small": options.small,
            "folder": str(folder),
            "arguments": given,
            "begun": time.monotonic(),
        }
    (options.state / "servers.json").write_text(json.dumps(running, indent=1))
    print(f"started {', '.join(running)} ({options.kind})", flush=True)


def wait(options: argparse.Namespace, job: dict[str, Any]) -> None:
    """A server that does not start is left out, so that the other one is measured all the same."""
    running, until = _running(options), time.monotonic() + options.seconds
    for name, server in [*running.items()]:
        while (state := _state(server)) == "starting" and time.monotonic() < until:
            time.sleep(1.0)
        took = time.monotonic() - server["begun"]
        print(f"{name}: {state} after {took:.0f} s", flush=True)
        if state == "ready":
            server["start_seconds"] = server.get("start_seconds") or round(took, 1)
            _warm_up(server, job, name)
        else:
            print(_tail(Path(server["folder"]) / "log.txt"), flush=True)
            server["failed"] = state == "ended"
    others = pin([server["pid"] for server in running.values()])
    print(f"processors of all but the engines: {others}", flush=True)
    for server in running.values():
        server["processors"] = others
    (options.state / "servers.json").write_text(json.dumps(running, indent=1))


def _state(server: dict[str, Any]) -> str:
    with suppress(urllib.error.URLError, OSError):
        page(server["url"], "/health")
        return "ready"
    try:
        waited, _ = os.waitpid(server["pid"], os.WNOHANG)  # a child only if this command has started it
        alive = waited == 0
    except ChildProcessError:
        alive = Path(f"/proc/{server['pid']}").exists() and "Z" not in _process_state(server["pid"])
    return "starting" if alive else "ended"


def _process_state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "Z"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def _warm_up(server: dict[str, Any], job: dict[str, Any], name: str) -> None:
    """The first steps of each shape compile kernels."""
    small = server["small"]
    prompts, seconds = ((48, 160), 8.0) if small else ((1024, 4096), 6.0)
    count = 4 if small else 48
    planned = [
        Planned(at_seconds=0.02 * i, prompt_tokens=prompts[i % 2], output_tokens=16 + 4 * i) for i in range(count)
    ]
    vocabulary = _vocabulary(job, name, small=small)
    for tokens in () if small else TILE_PROMPTS:
        _read_alone(server["url"], tokens, vocabulary)
    _, answers = send_all(server["url"], "m", planned, vocabulary=vocabulary, seconds=seconds, seed=str(time.time()))
    told = [answer.failure for answer in answers if answer.failure]
    tokens = sum(len(answer.token_seconds) for answer in answers)
    print(f"{name}: warmed up, {tokens} tokens; failures: {told[:1]}", flush=True)


def _read_alone(url: str, tokens: int, vocabulary: int) -> None:
    """Returns when the prompt is read, so that no other prompt is in its step."""
    prompt = [random.randrange(2, vocabulary) for _ in range(tokens)]
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(asked, timeout=30.0) as answer:
        answer.read()


def stop(options: argparse.Namespace, _: dict[str, Any]) -> None:
    for name, server in _running(options).items():
        with suppress(ProcessLookupError):
            os.killpg(server["pid"], signal.SIGTERM)
        until = time.monotonic() + 20.0
        while _state(server) != "ended" and time.monotonic() < until:
            time.sleep(0.5)
        with suppress(ProcessLookupError):
            os.killpg(server["pid"], signal.SIGKILL)
        print(f"{name}: ended", flush=True)
    (options.state / "servers.json").unlink()


def _running(options: argparse.Namespace) -> dict[str, Any]:
    path = options.state / "servers.json"
    if not path.exists():
        sys.exit(f"{path}: no servers; `start spec` or `start plain` begins")
    return dict(json.loads(path.read_text()))


# --- cells ---


def cells(job: dict[str, Any], running: dict[str, Any]) -> list[str]:
    """Those of one server after the other, so that the host is looked at between them; high load first."""
    shares = list(dict.fromkeys(name.split("-")[2] for name in job["traces"] if name.split("-")[1] not in OUTSIDE))
    return [
        f"{model}-{mix}-{share}-{contestant}"
        for model, server in running.items()
        for share in shares
        for mix in MIXES_BY_IMPORTANCE
        for contestant in CONTESTANTS[server["kind"]]
        if contestant not in LATER
    ]


def calibrate(options: argparse.Namespace, job: dict[str, Any]) -> None:
    folder = options.out / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    for name, server in _running(options).items():
        if server.get("failed"):
            continue
        cell = f"{name}-{CALIBRATION}-0-{CONTESTANTS[server['kind']][0]}"
        seconds = 24.0 if server["small"] else CALIBRATION_SECONDS
        try:
            recorded = _about(cell, server, job) | _record(cell, server, job, 0.0, seconds)
        except (OSError, ValueError, RuntimeError) as error:  # its cells are played all the same
            print(f"{cell}: {error}", flush=True)
            continue
        write_cell(folder, without_paths(recorded, options.state / "models"))
        print(said(recorded), flush=True)


def play(options: argparse.Namespace, job: dict[str, Any]) -> None:
    running, until = _running(options), time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    played = options.state / "played"
    played.mkdir(exist_ok=True)
    ramp, window = options.ramp or job["ramp_seconds"], options.window or job["window_seconds"]
    os.sched_setaffinity(0, next(iter(running.values()))["processors"])
    hosts: dict[str, Any] = {}
    for cell in options.cells or cells(job, running):
        server = running.get(cell.partition("-")[0])
        if server is None or server.get("failed") or (not options.cells and (played / cell).exists()):
            continue
        if time.monotonic() + ramp + window + 2.0 * HOST_SECONDS + 8.0 > until:
            print(f"{cell}: no time left for it in this command", flush=True)
            return
        try:
            recorded = _play(cell, server, job, ramp, window, hosts)
        except (OSError, ValueError, RuntimeError) as error:  # the other cells are played all the same
            print(f"{cell}: {error}", flush=True)
            _keep_log(cell, server, options.out)
            continue
        write_cell(options.out, without_paths(recorded, options.state / "models"))
        (played / cell).touch()
        _keep_log(cell, server, options.out)
        print(said(recorded), flush=True)


def _keep_log(cell: str, server: dict[str, Any], out: Path) -> None:
    name = f"{cell.partition('-')[0]}-{server['kind']}.log.txt"
    shutil.copyfile(Path(server["folder"]) / "log.txt", out / name)


def _play(
    cell: str, server: dict[str, Any], job: dict[str, Any], ramp: float, window: float, hosts: dict[str, Any]
) -> dict[str, Any]:
    """The host before a cell is that after the one before. `hosts`: the latest, by server."""
    name, _, _, contestant = cell.split("-", 3)
    before = hosts.pop(name, None) or _host(name, contestant, server, job)
    recorded = _about(cell, server, job) | _record(cell, server, job, ramp, window)
    hosts[name] = _host(name, contestant, server, job)
    return recorded | {"host": [before, hosts[name]]}


def _host(name: str, contestant: str, server: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    recorded = _record(f"{name}-{HOST}-0-{contestant}", server, job, 0.0, HOST_SECONDS)
    return {key: recorded[key] for key in ("cache", "steps")}


def _about(cell: str, server: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    name, mix, share, contestant = cell.split("-", 3)
    trace, model = job["traces"][f"{name}-{mix}-{share}"], job["models"][name]
    return {
        "cell": cell,
        "model": model,
        "trace": f"{name}-{mix}-{share}",
        "contestant": contestant,
        "rate": trace["rate"],
        "saturation": trace.get("saturation"),
        "limits": job["limits"],
        "arguments": server["arguments"],
        "start_seconds": server.get("start_seconds"),
    }


def _record(cell: str, server: dict[str, Any], job: dict[str, Any], ramp: float, window: float) -> dict[str, Any]:
    name, mix, share, contestant = cell.split("-", 3)
    wait_idle(server["url"])
    _set_depths(server, job["models"][name]["table"], contestant, job["limits"]["max_num_seqs"])
    place = Server(url=server["url"], folder=Path(server["folder"]))
    vocabulary = _vocabulary(job, name, small=server["small"])
    trace = job["traces"][f"{name}-{mix}-{share}"]
    return record(place, trace, vocabulary=vocabulary, ramp_seconds=ramp, window_seconds=window)


def _vocabulary(job: dict[str, Any], model: str, *, small: bool) -> int:
    return SMALL_VOCABULARY if small else VOCABULARY[job["models"][model]["model"]]


def _set_depths(server: dict[str, Any], table: list[list[int]], contestant: str, largest: int) -> None:
    """The engine reads them while it is idle."""
    if server["kind"] != "spec":
        return
    depths = [0] * (largest + 1)
    for first, last, depth in table:
        depths[first : last + 1] = [depth] * (min(last, largest) + 1 - first)
    if contestant.startswith("fixed-"):
        depths = [int(contestant.removeprefix("fixed-"))] * (largest + 1)
    path = Path(server["folder"]) / DEPTHS
    if not path.exists() or json.loads(path.read_text()) != depths:
        path.write_text(json.dumps(depths))
        time.sleep(FLUSH_SECONDS)


# --- command ---


def _options(given: list[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--state", type=Path, default=Path("/tmp/served"))
    options.add_argument("--jobs", type=Path, default=JOBS)
    commands = options.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start")
    starting.add_argument("kind", choices=tuple(CONTESTANTS))
    starting.add_argument("--models", nargs="+", default=["qwen", "glm"])
    starting.add_argument("--small", action="store_true", help="a model of four layers, to rehearse on a CPU")
    waiting = commands.add_parser("wait")
    waiting.add_argument("--seconds", type=float, default=330.0)
    calibrating = commands.add_parser("calibrate")
    calibrating.add_argument("out", type=Path)
    playing = commands.add_parser("play")
    playing.add_argument("out", type=Path)
    playing.add_argument("cells", nargs="*")
    playing.add_argument("--seconds", type=float, default=560.0, help="no cell begins that would end later")
    playing.add_argument("--ramp", type=float)
    playing.add_argument("--window", type=float)
    commands.add_parser("stop")
    return options.parse_args(given)


def main(given: list[str]) -> None:
    options = _options(given)
    options.state.mkdir(parents=True, exist_ok=True)
    job = json.loads(options.jobs.read_text())
    called = {"start": start, "wait": wait, "calibrate": calibrate, "play": play, "stop": stop}
    called[options.command](options, job)


if __name__ == "__main__":
    main(sys.argv[1:])
