"""MLX: one draft length for all batches. mlx-lm's server takes draft models; mlx-vlm's takes heads.

mlx-lm (0.32, mlx_lm/generate.py, server.py): `--draft-model`, `--num-draft-tokens`. It serves one request at a time
while a draft model is loaded, and refuses models whose cache cannot be trimmed: recurrent states cannot.
mlx-vlm (August 2026, server/cli.py): `--draft-kind mtp`, `eagle3` or `dflash` (DSpark too), `--draft-block-size` counts
the verified positions, one more than are drafted. Neither has n-gram drafts, and neither reads GGUF files.
Plans cover four sequences, as those of llama.cpp.
"""

from __future__ import annotations

import shlex

from specmargin.decisions.schedule import Schedule
from specmargin.formats.base import Benchmark, Command, EngineConfig, EngineFormat, Launch, ScheduleRequest
from specmargin.formats.rules import DepthRule
from specmargin.hardware.layout import Layout

_KINDS = {"mtp": "mtp", "eagle": "eagle3", "dflash": "dflash", "dspark": "dflash"}
_MTP_HEAD = "<your MTP head for MLX>"
_RULE = DepthRule(one_depth="one depth for all batches: MLX's servers have no other setting")
_ONE_REQUEST = "mlx_lm.server runs one request at a time while a draft model is loaded: batch 1 is what you get"


def express(request: ScheduleRequest, schedule: Schedule) -> EngineConfig:
    if request.drafter_kind == "model":
        text = f"--draft-model {shlex.quote(request.loaded_model)} --num-draft-tokens {{depth}}"
        return EngineConfig(text=text, schedule=schedule, needs="mlx-lm 0.32 or later", notes=(_ONE_REQUEST,))
    refusal = cannot_draft(request.drafter_kind, recurrent=False)
    if refusal:
        note = f"{refusal}: there is nothing to configure yet"
        return EngineConfig(text="", schedule=schedule, notes=(note,), unsupported=refusal)
    kind = request.method(_KINDS, "MLX")
    head = shlex.quote(request.loaded_model or _MTP_HEAD)
    text = f"--draft-model {head} --draft-kind {kind} --draft-block-size {{positions}}"
    return EngineConfig(text=text, schedule=schedule, needs="mlx-vlm of August 2026 or later")


def cannot_draft(kind: str, recurrent: bool) -> str:
    if kind == "ngram":
        return "MLX's servers have no n-gram drafts"
    if kind == "model" and recurrent:
        return "mlx-lm takes a draft model only where the cache can be trimmed, and a recurrent state cannot"
    return ""


# --- commands ---


def serve(launch: Launch) -> Command:
    program = "mlx_vlm.server" if "--draft-kind" in launch.config.text else "mlx_lm.server"
    text = f"{program} --model {shlex.quote(launch.model)} {launch.config.text}"
    return Command(text=text.rstrip())


def refuses(layout: Layout) -> str | None:
    return None if layout.gpus == 1 else "MLX is priced on one device; use --gpus 1"


def check(load: Benchmark) -> str:
    """Of mlx-lm's repository; it asks any server with OpenAI's interface."""
    return (
        "python benchmarks/server_benchmark.py --url http://localhost:8080/v1/chat/completions "
        f"--concurrency {load.concurrency or 1} --max-tokens {load.output_tokens}"
    )


FORMAT = EngineFormat(
    name="mlx",
    title="MLX",
    rule=lambda _: _RULE,
    express=express,
    serve=serve,
    check=check,
    metric="Aggregate tokens/sec",
    lengths_note=None,
    usual_batch=4,
    refuses=refuses,
    cannot_draft=cannot_draft,
    decode_refusal=lambda _: "MLX has no disaggregated serving",
)
