"""CUDA graphs for every depth that the controller may choose, requested before vLLM builds its configuration.

vLLM captures full graphs for the depths of `num_speculative_tokens_per_batch_size`; other depths run without. The table
added here is the plan's schedule, so that it is a good one even if the plug-in disables itself, or cannot choose depths
in this release. Further depths are
named at single batch sizes that hardly occur. Nothing here imports vLLM or Numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

from specmargin.live.settings_schema import GateKind, Mode, Range, Settings, depths_by_batch

TABLE = "num_speculative_tokens_per_batch_size"
FLAG = "enable_adaptive_verification"
_METHODS = ("eagle", "eagle3", "mtp")  # drafters whose passes follow the depth
_DEFAULT_SEQUENCES = 256  # vLLM's smallest default of max_num_seqs
_APART, _OFFSET = 8, 5  # further depths go to batch sizes 5, 13, 21, …: engines are seldom limited to these


def named(speculative: Any) -> dict[str, Any]:
    """A `speculative_config` with underscores in its names; vLLM accepts hyphens too."""
    given = speculative if isinstance(speculative, dict) else {}
    return {name.replace("-", "_"): value for name, value in given.items()}


def add_depth_table(given: Any, args: Any, settings: Settings, log: Callable[[str], None]) -> Any:
    """This `speculative_config` with a table; itself where none is added. `args`: the `EngineArgs`."""
    speculative = named(given)
    if settings.mode is Mode.OBSERVE or not settings.graphs or (args.data_parallel_size or 1) > 1:
        return given
    depth, method = speculative.get("num_speculative_tokens"), str(speculative.get("method", ""))
    follows = method in _METHODS or method.endswith("_mtp")
    if TABLE in speculative or not isinstance(depth, int) or not follows:
        return given
    gated = bool(speculative.get(FLAG)) and settings.gate_kind in (GateKind.AUTO, GateKind.ON)
    table = depth_table(settings, depth, args.max_num_seqs or _DEFAULT_SEQUENCES, gated=gated)
    depths = ", ".join(map(str, sorted({entry[2] for entry in table})))
    log(f"CUDA graphs are requested for drafts of {depths} tokens ({TABLE}: {table})")
    return {**given, TABLE: [list(entry) for entry in table]}


def depth_table(settings: Settings, depth: int, max_sequences: int, *, gated: bool = False) -> list[Range]:
    """The schedule of the settings or of the policy file up to `depth`, and in mode adaptive the other depths that may
    be chosen. `gated`: those that a gate would choose too."""
    file = {} if settings.policy is None else json.loads(settings.policy.read_text(encoding="utf-8"))
    own = settings.schedule if settings.mode is Mode.SCHEDULE else None
    by_batch = [min(scheduled, depth) for scheduled in depths_by_batch(own or file["schedule"], max_sequences)]
    if settings.mode is Mode.ADAPTIVE:
        with_gate = file["gate"]["graph_depths"] if gated and file["gate"] else ()
        wanted = {one for one in (*file["graph_depths"], *with_gate) if one <= depth} - set(by_batch[1:])
        for one in sorted(wanted, reverse=True):
            _name(one, by_batch, file["table"]["graph_depth_by_batch"])
    runs = [list(run) for _, run in groupby(range(1, len(by_batch)), key=by_batch.__getitem__)]
    return [(run[0], run[-1], by_batch[run[0]]) for run in runs]


def _name(depth: int, by_batch: list[int], graph_depths: list[int]) -> None:
    """Name a depth at the largest odd batch size that it has a graph for; nowhere if there is none to spare."""
    last = min(len(by_batch), len(graph_depths)) - 1
    for batch in range(last - (last - _OFFSET) % _APART, 0, -_APART):
        alone = 1 < batch < len(by_batch) - 1 and by_batch[batch - 1] == by_batch[batch] == by_batch[batch + 1]
        if alone and graph_depths[batch] >= depth:
            by_batch[batch] = depth
            return


def depth_note(speculative: Any) -> str | None:
    """What users of a drafter that ignores the depth should know. `speculative`: vLLM's `SpeculativeConfig`."""
    several = getattr(speculative, "use_multi_module_mtp", None)
    modules = callable(several) and bool(several())
    if speculative.method != "draft_model" and not modules:
        return None
    kind = "several MTP modules" if modules else "a draft model"
    tokens = speculative.num_speculative_tokens
    return f"vLLM drafts all {tokens} tokens with {kind}, whatever depth is chosen: a shorter draft saves no draft pass"
