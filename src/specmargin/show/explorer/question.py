"""The question that a scenario asks, in one sentence: titles, previews and embedded answers name it."""

from __future__ import annotations

from specmargin.show.explorer.request_schema import PageRequest


def question(asked: PageRequest) -> str:
    """As in `static/question.js`. `asked`: with the id of an uploaded file in place of its path."""
    by = f" with {asked.drafter}" if asked.drafter else ""
    engine = f" in {asked.engine}" if asked.engine else ""
    return f"Does speculation pay for {model(asked)} on {place(asked)}{by}{engine} {load(asked)}?"


def model(asked: PageRequest) -> str:
    return "a dropped model" if asked.model.startswith("upload:") else asked.model


def place(asked: PageRequest) -> str:
    return asked.gpu if asked.gpus == 1 else f"{asked.gpus} × {asked.gpu}"


def load(asked: PageRequest) -> str:
    if asked.concurrency is None and asked.qps is None:
        return f"at batch {asked.batch:,}, context {asked.context:,}"
    rate = f"{asked.concurrency:,} concurrent requests" if asked.qps is None else f"{asked.qps:g} requests per second"
    return f"at {rate}, {asked.isl or 0:,} input and {asked.osl or 0:,} output tokens"
