"""How much load one GPU takes, with and without speculation: policies side by side, request by request.

    python examples/capacity.py [capacity.html]

With a file, it also draws the figure (extra for figures: docs/guide/install.md).
"""

import sys

import specmargin

# The same requests under each policy: the controller of the live plug-in, the best fixed depth at small batches, and an
# engine without speculation. A closed loop: each user sends the next request when the last one is answered.
grid = {
    "base": {"model": "qwen3.6-35b-a3b", "gpu": "h200", "prices": "laws", "requests": 96, "isl": 1000, "osl": 200},
    "grid": {"concurrency": [1, 8, 32], "policy": ["controller", "fixed:4", "none"]},
}
sweep = specmargin.sweep(grid)

print("users  policy      tok/s  ms/token  depth")
for row in sweep.rows:
    speed, between, depth = row["goodput_tokens_per_second"], 1e3 * row["tpot_seconds_p50"], row["mean_draft_depth"]
    print(f"{row['concurrency']:>5}  {row['policy']:<10} {speed:>6,.0f} {between:>9.1f} {depth:>6.1f}")

if len(sys.argv) > 1:
    sweep.plot().save(sys.argv[1])  # throughput against time between tokens, a line per policy
