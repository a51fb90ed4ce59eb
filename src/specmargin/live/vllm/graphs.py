"""CUDA graphs for every depth that the controller may choose, requested before vLLM builds its configuration.

vLLM captures full graphs for the depths of `num_speculative_tokens_per_batch_size`; other depths run without. The table
added here is the plan's schedule, so that it is a good one even if the plug-in disables itself. Further depths are
named at single batch sizes that hardly occur. Nothing here imports vLLM or Numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specmargin.live.settings_schema import GateKind, Mode, Range, Settings

TABLE = "num_speculative_tokens_per_batch_size"
FLAG = "enable_adaptive_verification"
_METHODS = ("eagle", "eagle3", "mtp")  # drafters whose passes follow the depth
_DEFAULT_SEQUENCES = 256  # vLLM's smallest default of max_num_seqs
_APART, _OFFSET = 8, 5  # further depths go to batch sizes 5, 13, 21, …: engines are seldom limited to these


def add_depth_table(args: Any, settings: Settings, log: Callable[[str], None]) -> bool:
    """Add the table to vLLM's arguments, unless they have one; whether it was added. `args`: an `EngineArgs`."""
    given = args.speculative_config
    if settings.mode is Mode.OBSERVE or settings.policy is None or not settings.graphs or not isinstance(given, dict):
        return False
    named = {name.replace("-", "_"): value for name, value in given.items()}
    depth, method = named.get("num_speculative_tokens"), str(named.get("method", ""))
    follows = method in _METHODS or method.endswith("_mtp")
    if TABLE in named or not isinstance(depth, int) or not follows or (args.data_parallel_size or 1) > 1:
        return False
    gated = bool(named.get(FLAG)) and settings.gate_kind in (GateKind.AUTO, GateKind.ON)
    sequences = args.max_num_seqs or _DEFAULT_SEQUENCES
    table = depth_table(settings.policy, depth, sequences, settings.mode, gated=gated)
    args.speculative_config = {**given, TABLE: [list(entry) for entry in table]}
    depths = ", ".join(map(str, sorted({entry[2] for entry in table})))
    log(f"CUDA graphs are requested for drafts of {depths} tokens ({TABLE}: {table})")
    return True


def remove_depth_table(args: Any) -> None:
    args.speculative_config = {name: value for name, value in args.speculative_config.items() if name != TABLE}


def depth_table(policy: Path, depth: int, max_sequences: int, mode: Mode, *, gated: bool = False) -> list[Range]:
    """The schedule of a policy file up to `depth`, and in mode adaptive the other depths that may be chosen. `gated`:
    the look-ahead's depths too."""
    file = json.loads(policy.read_text(encoding="utf-8"))
    by_batch = _by_batch([(int(f), int(last), min(int(d), depth)) for f, last, d in file["schedule"]], max_sequences)
    if mode is Mode.ADAPTIVE:
        graph_depths = [int(deepest) for deepest in file["table"]["graph_depth_by_batch"]]
        ahead = (file.get("look_ahead") or {}).get("depth_by_batch", ())[1:] if gated else ()
        wanted = {int(one) for one in (*file["graph_depths"], *ahead) if one <= depth} - set(by_batch[1:])
        for one in sorted(wanted, reverse=True):
            _name(one, by_batch, graph_depths)
    return _ranges(by_batch)


def _by_batch(ranges: list[Range], max_sequences: int) -> list[int]:
    """Gaps and the tail keep the depth before them, as in vLLM."""
    depths = [0] * (max_sequences + 1)
    for first, _, depth in sorted(ranges):
        for batch in range(first, max_sequences + 1):
            depths[batch] = depth
    return depths


def _name(depth: int, by_batch: list[int], graph_depths: list[int]) -> None:
    """Name a depth at the largest odd batch size that it has a graph for; nowhere if there is none to spare."""
    last = min(len(by_batch), len(graph_depths)) - 1
    for batch in range(last - (last - _OFFSET) % _APART, 0, -_APART):
        alone = 1 < batch < len(by_batch) - 1 and by_batch[batch - 1] == by_batch[batch] == by_batch[batch + 1]
        if alone and graph_depths[batch] >= depth:
            by_batch[batch] = depth
            return


def _ranges(by_batch: list[int]) -> list[Range]:
    ranges: list[Range] = []
    for batch, depth in enumerate(by_batch[1:], start=1):
        if ranges and ranges[-1][2] == depth:
            ranges[-1] = (ranges[-1][0], batch, depth)
        else:
            ranges.append((batch, batch, depth))
    return ranges


def depth_note(speculative: Any) -> str | None:
    """What users of a drafter that ignores the depth should know. `speculative`: vLLM's `SpeculativeConfig`."""
    several = getattr(speculative, "use_multi_module_mtp", None)
    modules = callable(several) and bool(several())
    if speculative.method != "draft_model" and not modules:
        return None
    kind = "several MTP modules" if modules else "a draft model"
    tokens = speculative.num_speculative_tokens
    return f"vLLM drafts all {tokens} tokens with {kind}, whatever depth is chosen: a shorter draft saves no draft pass"
