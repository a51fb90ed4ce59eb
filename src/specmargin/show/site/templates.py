"""What an engine's format writes, as data for the browser: its rule, and its texts with slots for the numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from specmargin.catalog.drafters import DraftChoice
from specmargin.decisions.schedule import DepthTable, Range, Schedule
from specmargin.formats import find_engine
from specmargin.formats.base import (
    LEAST_PROMPTS,
    ROUNDS,
    SUBSETS,
    Benchmark,
    EngineConfig,
    EngineFormat,
    Launch,
    ScheduleRequest,
    empty_config,
)
from specmargin.formats.sglang import ADAPTIVE_FILE
from specmargin.hardware.layout import Layout
from specmargin.verbs.plan.commands import OUTPUT_TOKENS, served_model

_LAST = 512  # the last batch of a table, at least
_USERS, _SLOT_TOKENS = 7777, 11  # numbers that are found again in a command
_ONE, _OFF = Schedule.fixed(1, last=1), Schedule.fixed(0, last=1)
_SEVERAL = {  # schedules whose text is another than that of one depth
    "many": Schedule(ranges=(Range(first=1, last=1, depth=2), Range(first=2, last=2, depth=1))),
    "stops": Schedule(ranges=(Range(first=1, last=1, depth=1), Range(first=2, last=2, depth=0))),
}
_SETTING = EngineConfig(text="{config}", schedule=_ONE, file_name=ADAPTIVE_FILE, file_text="{file}")
_NO_SETTING = EngineConfig(text="", schedule=_OFF)


def templates(engine: EngineFormat, choice: DraftChoice) -> dict[str, Any]:
    """The engine's rule, and its texts for one depth, for several, for several with 0 among them, and for none."""
    request = _request(choice)
    rule = engine.rule(request)
    schedules = {"one": _ONE} | ({} if rule.one_depth else _SEVERAL)
    texts = {name: _text(engine.express(request, schedule)) for name, schedule in schedules.items()}
    off = {name: _off(request, batches) for name, batches in (("off_one", (1,)), ("off_many", (1, 2)))}
    return asdict(rule) | {"usual_batch": engine.usual_batch} | texts | off


def _text(config: EngineConfig) -> dict[str, Any]:
    return {"text": config.text, "file": config.file_text, "needs": config.needs, "notes": config.all_notes}


def command_templates(engine: str, model: str, gpus: int) -> dict[str, Any]:
    """The commands that serve a model and check the answer."""
    form, name = find_engine(engine), served_model(model, None, engine)[0]
    check = form.check(Benchmark(model=name, prompt_tokens=1024, output_tokens=OUTPUT_TOKENS, concurrency=_USERS))
    for subset in SUBSETS:
        check = check.replace(subset, "{subset}")
    return {
        "on": _served(engine, name, gpus, _SETTING),
        "off": _served(engine, name, gpus, _NO_SETTING),
        "check": _slotted(check, {"batch": _USERS, "prompts": _USERS * ROUNDS}),
        "prompts": {"least": LEAST_PROMPTS, "per_user": ROUNDS},
        "metric": form.metric,
        "per_second": form.metric.endswith(("t/s", "tokens/sec")),
        "subsets": SUBSETS,
        "output_tokens": OUTPUT_TOKENS,
    }


def _served(engine: str, model: str, gpus: int, config: EngineConfig) -> dict[str, Any]:
    """`{sequences}` and `{tokens}`: llama.cpp's slots, and the tokens of all of them."""
    launch = Launch(model=model, layout=Layout(gpus=gpus), config=config, sequences=_USERS, context=_SLOT_TOKENS)
    command = find_engine(engine).serve(launch)
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
        layout=Layout(),
        min_gain=0.0,
        hurdle_by_depth=(),
    )


def _off(request: ScheduleRequest, batches: tuple[int, ...]) -> tuple[str, ...]:
    config = empty_config(replace(request, batches=batches), _ONE)
    return () if config is None else config.notes
