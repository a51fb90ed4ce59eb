"""What stock vLLM servers on a GPU show of themselves, healthy and with faults, recorded for `specmargin doctor`.

    python -m lab.gpu.doctor OUT [--phase 1|2|3] [--small]     --small: a tiny model, to rehearse on a CPU

Qwen3-30B-A3B with an EAGLE-3 head, both with dummy weights, synthetic acceptance and uniform routing. The two servers
of a phase start side by side, and are loaded one after the other. OUT gets a file per load, as `lab/live/pages.py`
describes it, and the servers' logs. Only vLLM and the standard library are needed; the files are judged elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.gpu.jobs import GIGABYTE, UNIFORM, V1_RUNNER, VOCABULARY, head_folder, model_folder
from lab.live import servers
from lab.live.measuring import ENVIRONMENT
from lab.live.pages import Load, about, loaded, recorded, without_paths

MODEL = "qwen3-30b-a3b"
RATES = (0.72, 0.52, 0.38, 0.28, 0.2, 0.15, 0.11)  # a usual EAGLE-3 head; unconditional, by position
# From `plan qwen3-30b-a3b --gpu h200 --engine vllm --drafter eagle3 --context 400` with these rates, in fewer ranges.
TABLE = ((1, 64, 7), (65, 128, 3), (129, 256, 3))
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512)
FEW = Load(clients=8, prompt_tokens=(128, 384), output_tokens=(200, 600))
MANY = Load(clients=64, prompt_tokens=(128, 384), output_tokens=(200, 600))
BEYOND = Load(clients=160, prompt_tokens=(128, 384), output_tokens=(200, 600))
CROWD = Load(clients=256, prompt_tokens=(64, 192), output_tokens=(100, 300))
# The same of `plan … --context 450 --depth 5` with these rates; at batch 200 four positions each are beyond the graphs.
HELD_OUT_RATES = (0.82, 0.66, 0.52, 0.4, 0.3)
HELD_OUT_TABLE = ((1, 85, 5), (86, 102, 4), (103, 256, 3))
SETTLE_SECONDS, SECONDS, READINGS = 6.0, 12.0, 7
START_SECONDS = 330.0


def _sized(clients: int) -> Load:
    return Load(clients=clients, prompt_tokens=(160, 320), output_tokens=(250, 500))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server, and the loads to record on it with the cause that is right for each; None: nothing is wrong."""

    name: str
    loads: tuple[tuple[str, Load, str | None], ...]
    depth: int = 7
    schedule: tuple[tuple[int, int, int], ...] = TABLE  # (): one depth
    kv_gigabytes: int = 5  # two servers have 139 GiB between them, and the weights of each take 57
    rates: tuple[float, ...] = RATES
    sizes: tuple[int, ...] = SIZES
    speculative: dict[str, Any] = field(default_factory=dict)
    compilation: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


PHASES: dict[str, tuple[Subject, ...]] = {
    "1": (
        Subject(
            name="full-graphs",
            loads=(("batch-8", FEW, None), ("batch-64", MANY, None), ("batch-160", BEYOND, "beyond-graphs")),
            kv_gigabytes=11,
        ),
        Subject(
            name="piecewise",
            loads=(("batch-8", FEW, "piecewise"), ("batch-64", MANY, "piecewise")),
            compilation={"cudagraph_mode": "PIECEWISE"},
        ),
    ),
    "2": (
        # The first model runner drafts in piecewise graphs unless told not to; the second has no such option.
        Subject(
            name="eager-drafting",
            loads=(("batch-8", FEW, "draft-graphs"), ("batch-64", MANY, "draft-graphs")),
            depth=5,
            schedule=(),
            speculative={"enforce_eager": True},
            environment=V1_RUNNER,
        ),
        # Graphs cover 256 × 8 positions, so that depth alone is wrong.
        Subject(
            name="depth-7",
            loads=(("batch-256", CROWD, "depth-too-deep"),),
            kv_gigabytes=9,
            schedule=(),
            sizes=(8, 64, 256, 512, 1024, 2048),
            compilation={"max_cudagraph_capture_size": 2048},
        ),
    ),
    "3": (
        Subject(
            name="eager",
            loads=(("batch-8", FEW, "eager"), ("batch-64", MANY, "eager")),
            depth=5,
            schedule=(),
            engine={"enforce_eager": True},
        ),
        Subject(
            name="wrong-head",
            loads=(("batch-8", FEW, "drafter-broken"),),
            depth=3,
            schedule=(),
            rates=(0.02, 0.0, 0.0),
        ),
    ),
    # Held out: recorded after doctor was changed with the phases above in view, at other loads, depths and acceptance.
    "4": (
        Subject(
            name="held-out-graphs",
            loads=(
                ("batch-16", _sized(16), None),
                ("batch-100", _sized(100), None),
                ("batch-200", _sized(200), "beyond-graphs"),
                ("prompts", Load(clients=24, prompt_tokens=(1200, 1900), output_tokens=(4, 12)), "prompts"),
            ),
            depth=5,
            schedule=HELD_OUT_TABLE,
            rates=HELD_OUT_RATES,
            kv_gigabytes=12,
        ),
        Subject(
            name="held-out-eager-drafting",
            loads=(("batch-4", _sized(4), "draft-graphs"), ("batch-24", _sized(24), "draft-graphs")),
            depth=3,
            schedule=(),
            rates=HELD_OUT_RATES,
            speculative={"enforce_eager": True},
            environment=V1_RUNNER,
        ),
    ),
    "5": (
        Subject(
            name="held-out-piecewise",
            loads=(("batch-4", _sized(4), "piecewise"),),
            depth=3,
            schedule=(),
            rates=HELD_OUT_RATES,
            compilation={"cudagraph_mode": "PIECEWISE"},
        ),
        Subject(
            name="held-out-shallow",
            loads=(("batch-12", _sized(12), "depth-too-shallow"),),
            depth=1,
            schedule=(),
            rates=HELD_OUT_RATES,
        ),
    ),
}
# What the rehearsal changes: a model of 4 layers that a CPU runs, with the same flags where it has them.
_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 4096}
_SMALL |= {"moe_intermediate_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
_SMALL |= {"head_dim": 64, "max_position_embeddings": 4096, "n_routed_experts": 8, "q_lora_rank": 64}


def arguments(subject: Subject, folder: Path, *, small: bool) -> dict[str, Any]:
    model, head = model_folder(folder, MODEL, None), head_folder(folder, MODEL, None)
    if small:
        shrink(Path(model), Path(head))
    speculative = {
        "method": "eagle3",
        "model": head,
        "num_speculative_tokens": subject.depth,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": list(subject.rates[: subject.depth]),
        **({"num_speculative_tokens_per_batch_size": subject.schedule} if subject.schedule else {}),
        **subject.speculative,
    }
    given: dict[str, Any] = {
        "model": model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
        "speculative_config": speculative,
    }
    if not subject.engine.get("enforce_eager") and not small:
        given["compilation_config"] = {"cudagraph_capture_sizes": list(subject.sizes), **subject.compilation}
    if small:  # vLLM's CPU build has no synthetic acceptance
        given |= {"dtype": "float32", "enforce_eager": True}
        given["speculative_config"] = {
            name: speculative[name] for name in ("method", "model", "num_speculative_tokens")
        }
    else:  # the share of memory is only checked against what is free at the start
        given |= {"kv_cache_memory_bytes": subject.kv_gigabytes * GIGABYTE, "gpu_memory_utilization": 0.05}
    return given | subject.engine


def shrink(model: Path, *heads: Path) -> None:
    for path in (model, *heads):
        config = json.loads((path / "config.json").read_text())
        small = {name: value for name, value in _SMALL.items() if name in config}
        if path in heads:
            small |= {"num_hidden_layers": 1, "draft_vocab_size": 4096}
            small["eagle_config"] = config["eagle_config"] | {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}
        (path / "config.json").write_text(json.dumps(config | small))


def record_phase(subjects: tuple[Subject, ...], out: Path, *, small: bool) -> None:
    environment = (ENVIRONMENT if small else UNIFORM) | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_PLUGINS": ""}
    begun, started = time.monotonic(), []
    try:
        for subject in subjects:
            given = arguments(subject, out / "models", small=small)
            server = servers.start(given, folder=out / subject.name, environment=environment | subject.environment)
            started.append((subject, given, server))
        for subject, given, server in started:
            try:
                servers.wait(server, START_SECONDS)
                print(f"{subject.name}: started after {time.monotonic() - begun:.0f} s", flush=True)
                _record(subject, given, server, out, small=small)
            except (RuntimeError, OSError, ValueError) as error:  # the other server is recorded all the same
                print(f"{subject.name}: {str(error)[-1500:]}", flush=True)
    finally:
        for _, _, server in started:
            servers.end(server)


def _record(subject: Subject, given: dict[str, Any], server: servers.Running, out: Path, *, small: bool) -> None:
    for name, load, cause in subject.loads:
        sized = Load(clients=min(load.clients, 8), vocabulary=4096) if small else _of_model(load)
        with loaded(server.url, sized, settle_seconds=SETTLE_SECONDS) as clients:
            said = about(sized, engine="vllm", injected=subject.name, cause=cause, flags=servers.flags(given))
            pages = recorded(server.url, seconds=SECONDS, readings=READINGS, about=said, log=server.log)
        pages["about"] |= {"completed": clients.completed, "failures": clients.failures[:3]}
        path = out / f"{subject.name}-{name}.json"
        path.write_text(json.dumps(without_paths(pages, out / "models"), indent=1))
        print(f"{path.name}: {clients.completed} requests, {len(clients.failures)} failed", flush=True)


def _of_model(load: Load) -> Load:
    return Load(
        clients=load.clients,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        vocabulary=VOCABULARY[MODEL],
    )


def main(given: list[str]) -> None:
    out = Path(given[0])
    out.mkdir(parents=True, exist_ok=True)
    chosen = [given[given.index("--phase") + 1]] if "--phase" in given else ["1", "2"]
    for phase in chosen:
        record_phase(PHASES[phase], out.resolve(), small="--small" in given)


if __name__ == "__main__":
    main(sys.argv[1:])
