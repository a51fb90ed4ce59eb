"""Engine time beside the kernels, by name: fitted to served measurements or measured on one machine, and by release."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.engine_releases import KNOWN, Mechanism, Run, Scheduling, known_release, mechanism
from specmargin.errors import CatalogError, nearest_names
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.releases import parse_release, release
from specmargin.sources import Source, SourceKind, assumed

NO_ENGINE_TIME = EngineTime(
    source=assumed("none: kernels alone, so small batches look faster than they are (--engine-time)")
)
_MEASURED = {"vllm": "0.32"}  # the release of the engine's own entry; None: its terms hold for any
_SECOND_RUNNER, _FIRST_RUNNER = "vllm", "vllm:0.24"  # entries

# What a round, or before async scheduling any step, waits for the host. Published: EAGLE-3 rounds of Llama-3.1-8B on an
# L20 take 28.14 ms against 27.17 (vLLM pull request 25872); MTP rounds of DeepSeek-V3.2 on H100s 9.19 against 8.90 ms
# per token at an accept length of 1.7 to 2 (pull request 32951).
_SYNC_STEP_SECONDS, _WAITING_STEP_SECONDS = 0.97e-3, 0.54e-3
# Measured on a slow host, 36 µs (`vllm:sync` less `vllm`), in proportion: its steps waited 1.45 ms.
_SYNC_SEQUENCE_SECONDS = 24e-6
_ASSUMED_SPREAD = 0.4  # of such times, which one or two hosts published: 0.97 ms is 0.65 to 1.45
# Of the first runner's drafter outside its graph: inputs and metadata (llm_base_proposer.py, 0.27.1:659 to 760), logits
# and their maximum.
_DRAFT_LAUNCHES = 10.0
# Of the second runner's where it has no graph: 0.9 ms per pass of one layer at 0.06 ms per launch (graph-modes.json).
SECOND_DRAFT_LAUNCHES = 5.0

_LAUNCH_SECONDS = 28e-6
_LAUNCH_SOURCE = Source(
    kind=SourceKind.ASSUMED,
    detail="28 µs per launch, 0.28 ms per dense layer without a graph, on a server whose PyTorch operation takes 4.5 "
    "µs: a virtual host took 58 to 69 µs at 7.3 to 12.9 µs per operation (vLLM 0.32 on an H200), another 76 "
    "(--engine-time vllm:slow-host); published steps without graphs take 0.26 to 1 ms per layer (torchtitan pull "
    "request 2373, vllm-omni issue 7960, pie pull request 348)",
    spread=0.8,  # 13 to 62 µs
)


@cache
def _entries() -> dict[tuple[str, str], EngineTime]:
    times = read_bundled("engine_times.json")["times"]
    return {(entry["name"], entry["prices"]): _engine_time(entry) for entry in times}


def _engine_time(entry: dict[str, Any]) -> EngineTime:
    numbers = {name: value for name, value in entry.items() if name.endswith("_seconds")}
    time = EngineTime(**numbers, source=Source(kind=SourceKind(entry["kind"]), detail=entry["detail"]))
    if not entry["name"].startswith("vllm"):
        return time  # what others launch for prompts was not counted
    time = replace(time, prompt_graph=Graph.PIECEWISE)  # mixed batches in FULL_AND_PIECEWISE, vLLM's default since 0.11
    if time.kernel_launch_seconds:
        return time
    return replace(time, kernel_launch_seconds=_LAUNCH_SECONDS, launch_source=_LAUNCH_SOURCE)


def engine_time_names() -> list[str]:
    """Without releases: of these there are more than were read."""
    return ["none", *dict.fromkeys(name for name, _ in _entries())]


def names_release(name: str) -> bool:
    """`vllm:0.27.1`, or `vllm:0.27.1:sync` if it is started with synchronous scheduling."""
    engine, _, rest = name.partition(":")
    text, _, scheduling = rest.partition(":")
    return engine in KNOWN and parse_release(text) is not None and scheduling in ("", "sync")


def named_release(name: str | None, engine: str) -> tuple[int, ...] | None:
    """The release of this engine that an engine time names."""
    if name is None or not names_release(name) or name.partition(":")[0] != engine:
        return None
    return release(name.split(":")[1]).numbers


def find_engine_time(name: str | None, *, engine: str, prices: str, run: Run | None = None) -> EngineTime:
    """None: the engine's own with measured prices; no engine time with a datasheet roofline, which is a lower bound.

    `run`: what the engine runs, by which a release chooses its scheduling and its graphs.
    """
    fitted_beside = "laws" if prices == "scaled" else prices
    if name == "none" or (name is None and (engine, fitted_beside) not in _entries()):
        return NO_ENGINE_TIME
    side = fitted_beside if fitted_beside in {"laws", "tables"} else "laws"
    asked = engine if name is None else name
    of, _, text = asked.partition(":")
    if names_release(asked):
        return _released(of, text.removesuffix(":sync"), side, run, synchronous=text.endswith(":sync"))
    if (asked, side) not in _entries():
        names = engine_time_names()
        raise CatalogError(
            f"unknown engine time {asked!r}{nearest_names(asked, names)}; known: {', '.join(names)}, or a release "
            "(vllm:0.27.1)"
        )
    entry = _entries()[asked, side]
    if run is None or of not in _MEASURED or text not in ("", "sync"):
        return entry
    how = mechanism(of, _MEASURED[of], run)
    return _said(_in_graphs(entry if text else _scheduled(entry, entry, how), how), how.detail)


# --- releases ---


def _released(engine: str, text: str, side: str, run: Run | None, *, synchronous: bool) -> EngineTime:
    """`synchronous`: started so, plain steps and rounds on one model runner."""
    found, entries = known_release(engine, text), {name: time for (name, of), time in _entries().items() if of == side}
    if run is None:
        return entries[_entry_name(engine, second=found >= release("0.29"))]
    how = mechanism(engine, text, run)
    if synchronous:
        how = replace(how, plain_second_runner=how.second_runner, plain=Scheduling.SYNC, rounds=Scheduling.SYNC)
    entry = entries[_entry_name(engine, second=how.plain_second_runner)]
    time = _scheduled(entry, entries[_SECOND_RUNNER], how)
    if how.plain_second_runner and not how.second_runner:
        time = _on_first_runner(time, entry, entries[_FIRST_RUNNER], layers=run.target.layers)
    read = "" if found.text == text else f" (the release before {text} that was read)"
    said = how.detail.replace(str(found), f"{found}{read}", 1) + (", started synchronous" if synchronous else "")
    certain = how.second_runner and Scheduling.SYNC not in (how.plain, how.rounds)
    return _said(_in_graphs(time, how), said, spread=0.0 if certain else _ASSUMED_SPREAD)


def _entry_name(engine: str, *, second: bool) -> str:
    if engine != "vllm":
        return engine
    return _SECOND_RUNNER if second else _FIRST_RUNNER


def _on_first_runner(time: EngineTime, second: EngineTime, first: EngineTime, *, layers: int) -> EngineTime:
    """Rounds on the first model runner beside plain steps on the second: what its steps take more."""
    step = first.step_seconds + first.layer_seconds * layers - second.step_seconds - second.layer_seconds * layers
    sequence = first.sequence_seconds - second.sequence_seconds
    return replace(
        time,
        verify_step_seconds=time.verify_step_seconds + max(step, 0.0),
        verify_sequence_seconds=time.verify_sequence_seconds + max(sequence, 0.0),
    )


def _scheduled(entry: EngineTime, overlapped: EngineTime, how: Mechanism) -> EngineTime:
    """With what verifying adds to a step that overlaps with the host, and what the host makes it wait."""
    plain, rounds = _wait(how.plain), _wait(how.rounds)
    return replace(
        entry,
        step_seconds=entry.step_seconds + plain[0],
        sequence_seconds=entry.sequence_seconds + plain[1],
        verify_step_seconds=overlapped.verify_step_seconds + rounds[0] - plain[0],
        verify_sequence_seconds=overlapped.verify_sequence_seconds + rounds[1] - plain[1],
        verify_token_seconds=overlapped.verify_token_seconds,
        draft_pass_seconds=overlapped.draft_pass_seconds,
    )


def _wait(scheduling: Scheduling) -> tuple[float, float]:
    """Seconds per step and per sequence."""
    match scheduling:
        case Scheduling.ASYNC:
            return 0.0, 0.0
        case Scheduling.WAITING:
            return _WAITING_STEP_SECONDS, 0.0
        case Scheduling.SYNC:
            return _SYNC_STEP_SECONDS, _SYNC_SEQUENCE_SECONDS


def _in_graphs(time: EngineTime, how: Mechanism) -> EngineTime:
    return replace(
        time,
        plain_graph=how.plain_graph,
        verify_graph=how.verify_graph,
        first_draft_graph=how.first_draft_graph,
        draft_graph=how.draft_graph,
        draft_launches=_draft_launches(how),
    )


def _draft_launches(how: Mechanism) -> float:
    if how.draft_graph is Graph.FULL:
        return 0.0
    return SECOND_DRAFT_LAUNCHES if how.second_runner else _DRAFT_LAUNCHES


def _said(time: EngineTime, detail: str, *, spread: float = 0.0) -> EngineTime:
    return replace(time, source=replace(time.source, detail=f"{detail}; {time.source.detail}", spread=spread))
