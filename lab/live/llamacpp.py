"""llama.cpp's server with the random pair as GGUF, recorded healthy and with faults for `doctor`'s tests.

    pip install xllamacpp gguf
    python -m lab.live.llamacpp PAIR FOLDER     PAIR: what `lab.live.models.random_pair` wrote

`xllamacpp` has the server of llama.cpp as a library, so that no binary is needed.
"""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lab.live.gguf_parts import add_tokens, describe
from lab.live.pages import Load, about, loaded, page, recorded, without_paths
from lab.live.servers import free_port

Weights = dict[str, "np.ndarray[Any, Any]"]
SHORT = Load(clients=4)
#: By name: the drafter, its depth, the load, and the cause that is right.
RUNS: dict[str, tuple[str, int, Load, str | None]] = {
    "healthy-1": ("draft", 2, Load(clients=1, output_tokens=(100, 200)), None),
    # One core is busy with four sequences: 478 tokens per processor second without drafts, 369 with these.
    "drafts-at-batch-4": ("draft", 3, SHORT, "depth-too-deep"),
    "wrong-draft": ("wrong", 3, SHORT, "drafter-broken"),
    "long-prompts": ("draft", 3, Load(clients=4, prompt_tokens=(600, 900), output_tokens=(6, 12)), "prompts"),
}
_ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
}
_MLP = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}


# --- GGUF ---


def write_gguf(folder: Path, path: Path, *, shuffled: bool = False) -> None:
    """A Qwen3 or Qwen3-MoE of Hugging Face's format, in F32; shuffled: the right values in the wrong order."""
    import gguf  # noqa: PLC0415 (only where llama.cpp is recorded)

    config = json.loads((folder / "config.json").read_text())
    weights = _read(folder / "model.safetensors")
    if shuffled:
        random = np.random.default_rng(5)
        weights = {k: v if v.ndim == 1 else random.permutation(v.ravel()).reshape(v.shape) for k, v in weights.items()}
    moe = config["model_type"] == "qwen3_moe"
    writer = gguf.GGUFWriter(path, "qwen3moe" if moe else "qwen3")
    describe(writer, config, moe=moe)
    add_tokens(writer, config["vocab_size"], gguf.TokenType)
    for name, values in _tensors(config, weights, moe=moe):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(path: Path) -> Weights:
    """BF16, which NumPy has not."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in head.items():
        if name != "__metadata__":
            first, last = (8 + size + offset for offset in entry["data_offsets"])
            halves = np.frombuffer(data[first:last], dtype=np.uint16)
            found[name] = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return found


def _tensors(config: dict[str, Any], weights: Weights, *, moe: bool) -> Iterator[tuple[str, Any]]:
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output_norm.weight", weights["model.norm.weight"]
    yield "output.weight", weights["lm_head.weight"]
    for layer in range(config["num_hidden_layers"]):
        own, block = f"model.layers.{layer}.", f"blk.{layer}."
        for theirs, name in _ATTENTION.items():
            yield f"{block}{name}.weight", weights[f"{own}{theirs}.weight"]
        if moe:
            yield f"{block}ffn_gate_inp.weight", weights[f"{own}mlp.gate.weight"]
        for theirs, name in _MLP.items():
            if moe:
                each = [weights[f"{own}mlp.experts.{i}.{theirs}.weight"] for i in range(config["num_experts"])]
                yield f"{block}{name}_exps.weight", np.stack(each)
            else:
                yield f"{block}{name}.weight", weights[f"{own}mlp.{theirs}.weight"]


# --- the server ---


def serve(folder: Path, draft: str, depth: int, port: int) -> None:
    """In this process, until it is ended."""
    import xllamacpp  # noqa: PLC0415 (only where llama.cpp is recorded)

    given = xllamacpp.CommonParams()
    given.model.path = str(folder / "target.gguf")
    given.n_ctx, given.n_parallel, given.port, given.warmup, given.use_jinja = 8192, 4, port, False, False
    given.endpoint_metrics = given.endpoint_slots = given.endpoint_props = True
    drafter = given.speculative.draft
    given.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    drafter.mparams.path = str(folder / f"{draft}.gguf")
    drafter.n_max, drafter.n_min, drafter.p_min = depth, 0, 0.0
    for cores in (given.cpuparams, given.cpuparams_batch, drafter.cpuparams, drafter.cpuparams_batch):
        cores.n_threads = 1
    server = xllamacpp.Server(given)
    print(server.listening_address, flush=True)
    time.sleep(3600.0)


def record(folder: Path, name: str) -> Path:
    draft, depth, load, cause = RUNS[name]
    port, log = free_port(), folder / f"{name}.log"
    command = [sys.executable, "-m", "lab.live.llamacpp", "--serve", str(folder), draft, str(depth), str(port)]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            pages = _recorded(f"http://127.0.0.1:{port}", load, cause, log, injected=name, depth=depth)
        finally:
            process.terminate()
    path = folder / f"llamacpp-{name}.json"
    path.write_text(json.dumps(without_paths(pages, folder), indent=0) + "\n")
    return path


def _recorded(url: str, load: Load, cause: str | None, log: Path, *, injected: str, depth: int) -> dict[str, Any]:
    for _ in range(120):
        with contextlib.suppress(urllib.error.URLError, OSError):
            page(url, "/health")
            break
        time.sleep(0.5)
    release = f"llama.cpp in xllamacpp {version('xllamacpp')}"
    said = about(
        load,
        engine="llamacpp",
        release=release,
        injected=injected,
        cause=cause,
        settings=f"draft-simple, depth {depth}",
    )
    with loaded(url, load, settle_seconds=4.0):
        return recorded(url, seconds=20.0, readings=6, about=said, log=log)


def main(given: list[str]) -> None:
    if given[0] == "--serve":
        serve(Path(given[1]), given[2], int(given[3]), int(given[4]))
        return
    pair, folder = Path(given[0]), Path(given[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(pair / "target", folder / "target.gguf")
    write_gguf(pair / "draft", folder / "draft.gguf")
    write_gguf(pair / "draft", folder / "wrong.gguf", shuffled=True)
    for name in RUNS:
        print(record(folder, name).name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
