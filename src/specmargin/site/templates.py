"""What an engine's format writes, as templates for the browser.

The formats themselves write them: for tables made up so that the numbers in the text can only be these. So flags are
worded in one place, `formats/`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.schedule import DepthTable, Schedule
from specmargin.formats.base import EngineConfig, EngineFormat, ScheduleRequest
from specmargin.formats.commands import COMMANDS, SUBSETS, Benchmark, Launch
from specmargin.formats.sglang import ADAPTIVE_FILE, graph_batch_sizes
from specmargin.formats.trtllm import NEAREST, STARVED, STATELESS
from specmargin.modes import Parallel
from specmargin.verbs.plan.commands import OUTPUT_TOKENS, served_model

_DEEP, _LESS, _TURN, _LAST = 53, 47, 96, 512  # depths, the last batch of the deeper one, and the last batch of all
_HURDLE = 0.37
_USERS, _SLOT_TOKENS = 7777, 11


def templates(engine: EngineFormat, choice: DraftChoice) -> dict[str, Any]:
    """How schedules are made (`style`), and the text for one depth, for several, and for those that include 0."""
    ranges = _written(engine, choice, _table(_DEEP, _LESS))
    style = "fixed" if len(ranges.schedule.ranges) == 1 else "descending" if engine.name == "trtllm" else "ranges"
    return {
        "style": style,
        "sizes": graph_batch_sizes(_LAST) if engine.name == "sglang" and style == "ranges" else None,
        "warm": style == "descending" and choice.kind not in STATELESS,
        "starved": STARVED,
        "nearest": NEAREST,
        "one": _template(_written(engine, choice, _table(_DEEP, _DEEP))),
        "many": _template(ranges),
        "stops": _template(_written(engine, choice, _table(_DEEP, 0))),
        "off_one": _written(engine, choice, _losing(), batches=(1,)).notes,
        "off_many": _written(engine, choice, _losing()).notes,
    }


def command_templates(engine: str, model: str, gpus: int) -> dict[str, Any]:
    """The commands that serve a model and check the answer."""
    commands, name = COMMANDS[engine], served_model(model, None, engine)[0]
    check = commands.check(Benchmark(model=name, input_tokens=1024, output_tokens=OUTPUT_TOKENS, concurrency=_USERS))
    for subset in SUBSETS:
        check = check.replace(subset, "{subset}")
    check = re.sub(rf"\b{_USERS}\b", "{batch}", check)
    return {
        "on": _served(engine, name, gpus, _config("{config}")),
        "off": _served(engine, name, gpus, _config("")),
        "check": re.sub(rf"\b{_USERS * 10}\b", "{prompts}", check),
        "metric": commands.metric,
        "per_second": commands.metric.endswith("t/s"),
        "subsets": SUBSETS,
        "output_tokens": OUTPUT_TOKENS,
    }


def _config(text: str) -> EngineConfig:
    file = ADAPTIVE_FILE if text else None
    return EngineConfig(
        text=text, schedule=Schedule.fixed(1, last=1), file_name=file, file_text="{file}" if text else None
    )


def _served(engine: str, model: str, gpus: int, config: EngineConfig) -> dict[str, Any]:
    """`{sequences}` and `{tokens}`: llama.cpp's slots, and the tokens of all of them."""
    launch = Launch(model=model, gpus=gpus, parallel=Parallel.TP, config=config, sequences=_USERS, context=_SLOT_TOKENS)
    command = COMMANDS[engine].serve(launch)
    text = re.sub(rf"\b{_USERS * _SLOT_TOKENS}\b", "{tokens}", command.text)
    return {
        "command": re.sub(rf"\b{_USERS}\b", "{sequences}", text),
        "file_name": command.file_name,
        "file_text": command.file_text,
        "notes": list(command.notes),
    }


def _table(first: int, then: int) -> DepthTable:
    """One depth is best up to `_TURN`, another after it."""
    batches = np.arange(1, _LAST + 1)
    speedup = np.full((_LAST, _DEEP + 1), 0.5)
    speedup[:_TURN, first] = speedup[_TURN:, then] = 2.0
    return _of(batches, speedup)


def _losing() -> DepthTable:
    speedup = np.full((2, _DEEP + 1), 0.5)
    speedup[:, 0] = 0.9
    return _of(np.array([1, 2]), speedup)


def _of(batches: Any, speedup: Any) -> DepthTable:
    return DepthTable(
        batches=batches,
        speedup_by_batch_depth=speedup,
        allowed_by_batch_depth=np.ones(speedup.shape, dtype=bool),
        fits_by_depth=np.full(_DEEP + 1, _LAST),
    )


def _written(
    engine: EngineFormat, choice: DraftChoice, table: DepthTable, batches: tuple[int, ...] = (1, 2)
) -> EngineConfig:
    return engine.write(
        ScheduleRequest(
            table=table,
            batches=batches,
            drafter_kind=choice.kind,
            drafter_model=choice.model,
            overlapped=False,
            parallel=Parallel.TP,
            min_gain=0.02,
            hurdle_by_depth=(_HURDLE,) * _DEEP,
        )
    )


def _template(config: EngineConfig) -> dict[str, Any]:
    return {
        "text": _numbers_out(config.text, config.schedule),
        "file": None if config.file_text is None else "{slots}",
        "needs": config.needs,
        "notes": [*config.limits, *config.notes],
    }


def _numbers_out(text: str, schedule: Schedule) -> str:
    """`{ranges}`: [[first, last, depth], …]; `{entries}`: last: depth, …; `{depth}`, `{depth+1}`, `{p_min}`."""
    listed = json.dumps([[r.first, r.last, r.depth] for r in schedule.ranges])
    text = text.replace(listed, "{ranges}").replace(f"{_HURDLE:.2f}", "{p_min}")
    text = re.sub(r"(?<=draft_len_schedule: )\{.*\}", "{{entries}}", text)
    text = re.sub(rf"\b{_DEEP + 1}\b", "{depth+1}", text)
    return re.sub(rf"\b{_DEEP}\b", "{depth}", text)
