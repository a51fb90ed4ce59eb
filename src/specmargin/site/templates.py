"""What an engine's format writes, as data for the browser: its rule, and its texts with slots for the numbers.

The formats write the texts themselves, for numbers that are then found in them. So flags are worded in one place,
`formats/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.schedule import DepthTable, Range, Schedule
from specmargin.formats.base import EngineConfig, EngineFormat, ScheduleRequest, empty_config
from specmargin.formats.commands import COMMANDS, SUBSETS, Benchmark, Launch
from specmargin.formats.rules import DepthRule
from specmargin.formats.sglang import ADAPTIVE_FILE
from specmargin.modes import Parallel
from specmargin.phrases import fill
from specmargin.verbs.plan.commands import OUTPUT_TOKENS, served_model

_DEEP, _LESS, _TURN, _LAST = 53, 47, 96, 512  # depths, the last batch of the deeper one, and the last batch of all
_HURDLE = 0.37
_USERS, _SLOT_TOKENS = 7777, 11
_NUMBERS = {"depth": _DEEP, "positions": _DEEP + 1, "p_min": f"{_HURDLE:.2f}"}
#: One range of a schedule; `key`: the next batch after which the rule lets the depth change.
_ENTRIES = {
    "vllm": "[{first}, {last}, {depth}]",
    "sglang": '"{key}": {"candidate_steps": [{depth}]}',
    "trtllm": "{last}: {depth}",
    "llamacpp": "",
}
_SETTING = EngineConfig(
    text="{config}", schedule=Schedule.fixed(1, last=1), file_name=ADAPTIVE_FILE, file_text="{file}"
)
_NO_SETTING = EngineConfig(text="", schedule=Schedule.fixed(0, last=1))


def templates(engine: EngineFormat, choice: DraftChoice) -> dict[str, Any]:
    """The engine's rule, and its texts for one depth, for several, for several with 0 among them, and for none."""
    request = _request(choice)
    rule, entry = engine.rule(request), _ENTRIES[engine.name]
    several = {} if rule.one_depth else {"many": (_DEEP, _LESS), "stops": (_DEEP, 0)}
    schedules: dict[str, tuple[int, ...]] = {"one": (_DEEP,), **several}
    texts = {
        name: _template(engine.express(request, _schedule(depths)), rule, entry) for name, depths in schedules.items()
    }
    off = {name: _off(request, batches) for name, batches in (("off_one", (1,)), ("off_many", (1, 2)))}
    return asdict(rule) | {"entry": entry} | texts | off


def command_templates(engine: str, model: str, gpus: int) -> dict[str, Any]:
    """The commands that serve a model and check the answer."""
    commands, name = COMMANDS[engine], served_model(model, None, engine)[0]
    check = commands.check(Benchmark(model=name, input_tokens=1024, output_tokens=OUTPUT_TOKENS, concurrency=_USERS))
    for subset in SUBSETS:
        check = check.replace(subset, "{subset}")
    return {
        "on": _served(engine, name, gpus, _SETTING),
        "off": _served(engine, name, gpus, _NO_SETTING),
        "check": _slotted(check, {"batch": _USERS, "prompts": _USERS * 10}),
        "metric": commands.metric,
        "per_second": commands.metric.endswith("t/s"),
        "subsets": SUBSETS,
        "output_tokens": OUTPUT_TOKENS,
    }


def _served(engine: str, model: str, gpus: int, config: EngineConfig) -> dict[str, Any]:
    """`{sequences}` and `{tokens}`: llama.cpp's slots, and the tokens of all of them."""
    launch = Launch(model=model, gpus=gpus, parallel=Parallel.TP, config=config, sequences=_USERS, context=_SLOT_TOKENS)
    command = COMMANDS[engine].serve(launch)
    return {
        "command": _slotted(command.text, {"sequences": _USERS, "tokens": _USERS * _SLOT_TOKENS}),
        "file_name": command.file_name,
        "file_text": command.file_text,
        "notes": list(command.notes),
    }


def _slotted(text: str, numbers: Mapping[str, object]) -> str:
    for name, number in numbers.items():
        text = re.sub(rf"\b{number}\b", f"{{{name}}}", text)
    return text


def _schedule(depths: tuple[int, ...]) -> Schedule:
    if len(depths) == 1:
        return Schedule.fixed(depths[0], last=_LAST)
    first, then = depths
    return Schedule(
        ranges=(Range(first=1, last=_TURN, depth=first), Range(first=_TURN + 1, last=_LAST, depth=then)),
    )


def _request(choice: DraftChoice) -> ScheduleRequest:
    """With a table on which nothing pays."""
    speedup = np.full((1, 2), 0.5)
    table = DepthTable(
        batches=np.array([_LAST]),
        speedup_by_batch_depth=speedup,
        allowed_by_batch_depth=np.ones(speedup.shape, dtype=bool),
        fits_by_depth=np.full(2, _LAST),
    )
    return ScheduleRequest(
        table=table,
        batches=(1,),
        drafter_kind=choice.kind,
        drafter_model=choice.model,
        overlapped=False,
        parallel=Parallel.TP,
        min_gain=0.0,
        hurdle_by_depth=(_HURDLE,) * _DEEP,
    )


def _off(request: ScheduleRequest, batches: tuple[int, ...]) -> tuple[str, ...]:
    config = empty_config(replace(request, batches=batches), Schedule.fixed(1, last=_LAST))
    return () if config is None else config.notes


def _template(config: EngineConfig, rule: DepthRule, entry: str) -> dict[str, Any]:
    ranges = config.schedule.ranges
    if rule.beyond and ranges[-1].depth == 0:
        ranges = ranges[:-1]  # beyond the last entry drafting is off anyway
    keys = [next((size for size in rule.ends if size >= each.first), each.first) for each in ranges]
    entries = ", ".join(fill(entry, asdict(each) | {"key": key}) for each, key in zip(ranges, keys, strict=True))

    def slotted(text: str) -> str:
        return _slotted(text.replace(entries, "{entries}") if entries else text, _NUMBERS)

    return {
        "text": slotted(config.text),
        "file": None if config.file_text is None else slotted(config.file_text),
        "needs": config.needs,
        "notes": config.notes,
    }
