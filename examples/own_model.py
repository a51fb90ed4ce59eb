"""Your own model, acceptance and price per GPU-hour: which GPU serves it cheapest, and how deep should it draft?

python examples/own_model.py
"""

import csv
import json
import tempfile
from pathlib import Path

import specmargin

folder = Path(tempfile.mkdtemp())

# 1. A model that is not bundled: its config.json; weights are never read. This one is invented: a Qwen3-MoE with twice
#    as many experts, half as wide.
config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 16,
    "moe_intermediate_size": 384,
    "intermediate_size": 6144,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
(folder / "config.json").write_text(json.dumps(config))

# 2. Your acceptance, from a log of rounds: tokens committed per round, the bonus token included, of drafts of 4.
committed = [5, 3, 1, 4, 5, 2, 5, 1, 3, 5, 4, 2, 5, 5, 1, 3, 2, 5, 4, 5] * 20
with (folder / "rounds.csv").open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["commits", "drafted"])
    rows.writerows([count, 4] for count in committed)

# 3. One table for several GPUs. Each line is the best that this GPU can do.
plan = specmargin.plan(
    str(folder),
    gpu="h100,h200,b200",
    gpu_hour_price="h100=2.5,h200=3.5,b200=5",
    drafter="eagle",
    acceptance=str(folder / "rounds.csv"),
    depth=4,  # nothing is known beyond the drafts of the log
    batch=32,
    prices="laws",
)
print(plan.verdict)
for row in plan.machines.rows:
    if not row.fits:
        print(f"{row.machine}: {row.note}")
        continue
    cost, plain = row.cost_per_million_tokens, row.no_spec_cost_per_million_tokens
    costs = f"${cost:.3f} per million tokens, ${plain:.3f} without"
    print(f"{row.machine}: {row.speedup:.2f}x with drafts of {row.depth}, {costs}")

# 4. The flags, for the GPU that was preferred.
print(plan.flags("vllm"))
