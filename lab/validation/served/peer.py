"""AIConfigurator's estimate of a served row.

It gets the same layout and configuration that Specmargin prices, and several attempts: the tables of the row's engine
version, then the newest; the row's number formats, then those of the checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np

from lab.validation.served.rows import ServedRow, configuration_name
from specmargin.errors import InputError
from specmargin.prices.kernels.store import SYSTEMS

Estimate = Callable[[ServedRow], float | None]


def stratified(rows: Sequence[ServedRow], *, seed: int) -> list[ServedRow]:
    """A random order that cycles through the groups (family, GPU, engine), so that every prefix is stratified."""
    generator = np.random.default_rng(seed)
    groups: dict[tuple[str, str, str], list[ServedRow]] = {}
    for row in rows:
        groups.setdefault((row.family, row.device, row.engine), []).append(row)
    queues = []
    for key in sorted(groups):
        members = groups[key]
        queues.append([members[i] for i in generator.permutation(len(members))])
    picked: list[ServedRow] = []
    for turn in range(max(map(len, queues), default=0)):
        picked += [queue[turn] for queue in queues if turn < len(queue)]
    return picked


def aiconfigurator() -> Estimate:
    """AIConfigurator's estimate of the time per output token, in seconds; None where it cannot price the row."""
    if find_spec("aiconfigurator") is None:
        raise InputError("AIConfigurator is not installed; run: pip install aiconfigurator")
    logging.disable(logging.CRITICAL)
    estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate

    def seconds(row: ServedRow) -> float | None:
        for version, formats in product(dict.fromkeys((row.version or None, None)), (True, False)):
            arguments = _arguments(row, version, formats=formats)
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.suppress(Exception),  # any exception means that it cannot price the row this way
            ):
                return float(estimate(**arguments).tpot) * 1e-3
        return None

    return seconds


def _arguments(row: ServedRow, version: str | None, *, formats: bool) -> dict[str, Any]:
    layout = row.layout
    arguments: dict[str, Any] = {
        "model_path": configuration_name(row.model, row.weights).replace("--", "/"),
        "system_name": SYSTEMS[row.device],
        "mode": "agg",
        "backend_name": row.engine,
        "backend_version": version,
        "isl": row.prompt_tokens,
        "osl": row.output_tokens,
        "batch_size": max(1, round(row.concurrency / layout.sequence_ranks)),
        "tp_size": layout.attention_ranks,
        "pp_size": 1,
        "attention_dp_size": layout.sequence_ranks,
    }
    if formats:
        arguments |= {"gemm_quant_mode": row.weights or None, "moe_quant_mode": row.expert_weights or None}
    if row.is_moe:
        arguments |= {"moe_tp_size": layout.expert_tensor_ranks, "moe_ep_size": layout.expert_ranks}
    return arguments
