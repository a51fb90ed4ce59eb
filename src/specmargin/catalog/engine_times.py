"""Engine time beside the kernels, by name: fitted to served measurements or measured on one machine, and by release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.engine_releases import KNOWN, Mechanism, Run, Scheduling, known_release, mechanism
from specmargin.catalog.machines import find_host
from specmargin.catalog.user import UserFile, user_file, user_files
from specmargin.errors import CatalogError, nearest_names
from specmargin.hardware.host import Host
from specmargin.prices.launches import Graph
from specmargin.prices.model import EngineTime
from specmargin.releases import parse_release, release
from specmargin.sources import Source, SourceKind, assumed

NO_ENGINE_TIME = EngineTime(
    source=assumed("none: kernels alone, so small batches look faster than they are (--engine-time)")
)
# mlx-lm builds the graph of the next plain step while the GPU runs. A round waits for its tokens before it builds the
# next one (generate.py, speculative_generate_step): 0.25 ms to read them (jundot/omlx issue 3553), about 1 ms to build.
MLX_ROUNDS = EngineTime(
    verify_step_seconds=1.25e-3,
    source=Source(
        kind=SourceKind.ASSUMED, detail="MLX: 1.25 ms per round to read its tokens and build the next graph", spread=0.3
    ),
)
_MEASURED = {"vllm": "0.32"}  # the release of the engine's own entry; None: its terms hold for any
_ASSUMED_SPREAD = 0.7  # of llama.cpp's times, which nobody timed: within a factor of two
_SECOND_RUNNER, _FIRST_RUNNER = "vllm", "vllm:0.24"  # entries
_SYNC, _LAUNCH_TIME = "sync", re.compile(r"(\d{1,3}(?:\.\d+)?)us")

# Of the first runner's drafter outside its graph: inputs and metadata (llm_base_proposer.py, 0.27.1:659 to 760), logits
# and their maximum.
_DRAFT_LAUNCHES = 10.0
# Of the second runner's where it has no graph: 0.9 ms per pass of one layer at 0.06 ms per launch (graph-modes.json).
SECOND_DRAFT_LAUNCHES = 5.0


def _entries() -> dict[tuple[str, str], EngineTime]:
    return _entries_on(find_host())


@cache
def _entries_on(host: Host) -> dict[tuple[str, str], EngineTime]:
    times = read_bundled("engine_times.json")["times"]
    return {(time["name"], time["prices"]): _engine_time(time, time["name"].partition(":")[0], host) for time in times}


def _engine_time(entry: Mapping[str, Any], engine: str, host: Host) -> EngineTime:
    numbers = {name: value for name, value in entry.items() if name.endswith("_seconds")}
    time = EngineTime(**numbers, source=Source(kind=SourceKind(entry["kind"]), detail=entry["source"]))
    if engine == "llamacpp":
        return replace(time, catches_up_alone=True, source=replace(time.source, spread=_ASSUMED_SPREAD))
    if engine != "vllm":
        return time  # what others launch for prompts was not counted
    time = replace(time, prompt_graph=Graph.PIECEWISE)  # mixed batches in FULL_AND_PIECEWISE, vLLM's default since 0.11
    if time.kernel_launch_seconds:
        return time
    source = replace(time.source, file=host.source.file, overrides=host.source.overrides)
    launch = host.kernel_launch_seconds
    return replace(time, kernel_launch_seconds=launch, launch_source=host.launch_source, source=source)


def engine_time_names() -> list[str]:
    """Bundled and the user's, without releases: of these there are more than were read."""
    return ["none", *dict.fromkeys((*bundled_times(), *user_files("engine-time")))]


def bundled_times() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in _entries()))


def user_engine_time(file: UserFile) -> EngineTime:
    entry = file.entry()
    time = _engine_time(entry.model_dump(), entry.engine, find_host())
    return replace(time, source=file.sourced(time.source, overrides=file.name in bundled_times()))


def _users(name: str | None, engine: str, side: str) -> EngineTime | None:
    """The user's engine time of this name or of the engine, beside the prices that it was fitted for; None: bundled."""
    file = user_file("engine-time", name or engine)
    if file is None or (name is None and file.entry().prices not in (None, side)):
        return None
    entry = file.entry()
    if entry.engine != engine:
        raise CatalogError(f"--engine-time {file.name} is of {entry.engine} ({file.path}); add --engine {entry.engine}")
    if entry.prices not in (None, side):
        raise CatalogError(
            f"--engine-time {file.name} was fitted beside {entry.prices} ({file.path}); add --prices {entry.prices}"
        )
    return user_engine_time(file)


def names_release(name: str) -> bool:
    """`vllm:0.27.1`; with `:sync` if started with synchronous scheduling, `:102us` if the host's launches are known.

    A launch is a tenth of what the host takes for a dense layer without a CUDA graph (`prices/launches.py`).
    """
    engine, _, rest = name.partition(":")
    text, *options = rest.split(":")
    stated = [_LAUNCH_TIME.fullmatch(option) is not None for option in options]
    is_known = all(is_time or option == _SYNC for option, is_time in zip(options, stated, strict=True))
    return engine in KNOWN and parse_release(text) is not None and is_known and len(stated) == len(set(stated))


def named_release(name: str | None, engine: str) -> tuple[int, ...] | None:
    """The release of this engine that an engine time names."""
    if name is None or not names_release(name) or name.partition(":")[0] != engine:
        return None
    return release(name.split(":")[1]).numbers


def named_build(name: str | None, engine: str) -> str:
    """Whose build of a release it names (`vllm:0.20.2+rtx6kpro`); "": the engine's own."""
    return "" if named_release(name, engine) is None or name is None else release(name.split(":")[1]).build


def find_engine_time(name: str | None, *, engine: str, prices: str, run: Run | None = None) -> EngineTime:
    """None: the engine's own with measured prices; no engine time with a datasheet roofline, which is a lower bound.

    `run`: what the engine runs, by which a release chooses its scheduling and its graphs.
    """
    if name is None and prices == "mlx":
        return MLX_ROUNDS
    fitted_beside = "laws" if prices == "scaled" else prices
    if name == "none" or (name is None and (engine, fitted_beside) not in _entries()):
        return NO_ENGINE_TIME
    side = fitted_beside if fitted_beside in {"laws", "tables", "llamacpp"} else "laws"
    own = _users(name, engine, side)
    if own is not None:
        return own
    asked = engine if name is None else name
    of, _, text = asked.partition(":")
    if names_release(asked):
        return _released(of, asked.split(":")[1:], side, run)
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
    return _said(_in_graphs(entry if text else _scheduled(entry, entry, how, find_host()), how), how.detail)


# --- releases ---


def _released(engine: str, named: Sequence[str], side: str, run: Run | None) -> EngineTime:
    """`named`: the release, and how it is started: synchronous, with plain steps and rounds on one runner, or where."""
    text, *options = named
    host, synchronous = _host(options), _SYNC in options
    found = known_release(engine, text)
    entries = {name: time for (name, of), time in _entries_on(host).items() if of == side}
    if run is None:
        return entries[_entry_name(engine, second=found >= release("0.29"))]
    how = mechanism(engine, text, run)
    if synchronous:
        how = replace(how, plain_second_runner=how.second_runner, plain=Scheduling.SYNC, rounds=Scheduling.SYNC)
    entry = entries[_entry_name(engine, second=how.plain_second_runner)]
    time = _scheduled(entry, entries[_SECOND_RUNNER], how, host)
    if how.plain_second_runner and not how.second_runner:
        time = _on_first_runner(time, entry, entries[_FIRST_RUNNER], layers=run.target.layers)
    read = "" if found.text == text.partition("+")[0] else f" (the release before {text} that was read)"
    said = how.detail.replace(str(found), f"{found}{read}", 1) + (", started synchronous" if synchronous else "")
    certain = how.second_runner and Scheduling.SYNC not in (how.plain, how.rounds)
    return _said(_in_graphs(time, how), said, spread=0.0 if certain else host.wait_spread)


def _host(options: Sequence[str]) -> Host:
    timed = [float(match[1]) for match in map(_LAUNCH_TIME.fullmatch, options) if match]
    return find_host().launching_in(timed[0] * 1e-6) if timed else find_host()


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


def _scheduled(entry: EngineTime, overlapped: EngineTime, how: Mechanism, host: Host) -> EngineTime:
    """With what verifying adds to a step that overlaps with the host, and what the host makes it wait."""
    plain, rounds = _wait(how.plain, host), _wait(how.rounds, host)
    return replace(
        entry,
        step_seconds=entry.step_seconds + plain[0],
        sequence_seconds=entry.sequence_seconds + plain[1],
        verify_step_seconds=overlapped.verify_step_seconds + rounds[0] - plain[0],
        verify_sequence_seconds=overlapped.verify_sequence_seconds + rounds[1] - plain[1],
        verify_token_seconds=overlapped.verify_token_seconds,
        draft_pass_seconds=overlapped.draft_pass_seconds,
        plain_ahead=how.plain is Scheduling.ASYNC,
        rounds_ahead=how.rounds is Scheduling.ASYNC,
    )


def _wait(scheduling: Scheduling, host: Host) -> tuple[float, float]:
    """Seconds per step and per sequence, for which a round, or before async scheduling any step, waits."""
    match scheduling:
        case Scheduling.ASYNC:
            return 0.0, 0.0
        case Scheduling.WAITING:
            return host.waiting_step_seconds, 0.0
        case Scheduling.SYNC:
            return host.sync_step_seconds, host.sync_sequence_seconds


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
