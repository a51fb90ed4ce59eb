"""The outcome of a step, read from what vLLM hands over: arrays, and no Python code per request.

Where nothing is needed by request (no capture), steps whose requests all decode at one depth take one pass
over the lists of sampled tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import compress, repeat
from typing import Any

import numpy as np

from specmargin.live.driver import Driver
from specmargin.live.gate_messages import RETURNED, Returned, expectation
from specmargin.live.sequences import StepDone
from specmargin.step import IntArray


def step_done(scheduled: Any, output: Any, requests: Mapping[str, Any], driver: Driver) -> StepDone:
    """As in vLLM, accepted tokens are sampled tokens minus one. Drafts that a gate in the workers cut were not
    verified, whatever vLLM scheduled."""
    returned: Returned | None = getattr(output, RETURNED, None)
    depths = 0 if returned is None else driver.learned_depth
    captures = driver.capture is not None
    step = None if captures else _alike(scheduled, output, returned, depths)
    if step is None:
        step = _by_request(scheduled, output, requests, returned, depths, with_contexts=captures)
    if returned is not None and returned.faults:
        step.worker_faults = sum(returned.faults.values())
    step.distinct_experts = float(getattr(output, "specmargin_experts", math.nan))
    return step


def _alike(scheduled: Any, output: Any, returned: Returned | None = None, learned_depth: int = 0) -> StepDone | None:
    """All requests decode, and have as many drafts; None if they do not."""
    tokens, sampled = scheduled.num_scheduled_tokens, output.sampled_token_ids
    widths, count = set(tokens.values()), len(tokens)
    if len(widths) != 1 or len(sampled) != count or scheduled.num_invalid_spec_tokens:
        return None
    drafts = widths.pop() - 1
    if len(scheduled.scheduled_spec_decode_tokens) != (count if drafts else 0):
        return None
    lengths = list(map(len, sampled))
    if 0 in lengths:
        return None
    accepted = np.array(lengths, dtype=np.int64)
    accepted -= 1
    drafted = verified = _alike_drafts(count, drafts)
    if returned is not None:
        if returned.verified.size != count:
            return None
        verified = np.minimum(returned.verified, drafted).astype(np.int64)
    return StepDone(
        verified=verified,
        accepted=accepted,
        verified_tokens=count * drafts if returned is None else int(verified.sum()),
        accepted_tokens=sum(lengths) - count,
        prompt_tokens=0,
        seconds=math.nan,
        expected=None if returned is None else expectation(returned, drafted, verified, learned_depth),
    )


@lru_cache(maxsize=256)
def _alike_drafts(count: int, drafts: int) -> IntArray:
    """Nobody changes it: most steps have the same."""
    return np.full(count, drafts, dtype=np.int64)


def _by_request(
    scheduled: Any,
    output: Any,
    requests: Mapping[str, Any],
    returned: Returned | None = None,
    learned_depth: int = 0,
    *,
    with_contexts: bool,
) -> StepDone:
    """Requests that decode, in vLLM's order. The others are prompts, or were removed meanwhile."""
    ids = list(scheduled.num_scheduled_tokens)
    tokens = np.fromiter(scheduled.num_scheduled_tokens.values(), np.int64, len(ids))
    if not (ids and output.sampled_token_ids):
        return StepDone.nothing(int(tokens.sum()))
    drafts = np.fromiter(map(len, map(scheduled.scheduled_spec_decode_tokens.get, ids, repeat(()))), np.int64, len(ids))
    known = np.fromiter(map(requests.__contains__, ids), np.bool_, len(ids))
    rows = np.fromiter(map(output.req_id_to_index.get, ids, repeat(-1)), np.int64, len(ids))
    lengths = np.fromiter(map(len, output.sampled_token_ids), np.int64, len(output.sampled_token_ids))
    sampled = np.append(lengths, 0)[rows]
    whole = tokens == 1 + drafts
    decodes = whole & known & (sampled > 0)
    invalid = scheduled.num_invalid_spec_tokens
    if invalid:
        drafts = drafts - np.fromiter(map(invalid.get, ids, repeat(0)), np.int64, len(ids))
    kept = ids if decodes.all() else list(compress(ids, decodes.tolist()))
    drafted = verified = drafts[decodes]
    gate = None if returned is None else _rows(returned, rows[decodes])
    if gate is not None:
        verified = np.minimum(gate.verified, drafted).astype(np.int64)
    return StepDone.of(
        verified,
        sampled[decodes] - 1,
        request_ids=kept,
        contexts=[requests[request_id].num_computed_tokens for request_id in kept] if with_contexts else (),
        expected=None if gate is None else expectation(gate, drafted, verified, learned_depth),
        confidence=None if gate is None else gate.confidence,
        prompt_tokens=int(tokens[~whole | (known & (sampled == 0))].sum()),
        seconds=math.nan,
    )


def _rows(returned: Returned, rows: IntArray) -> Returned | None:
    """Of these rows of the output; None if there are others."""
    if rows.size and (rows.min() < 0 or rows.max() >= returned.verified.size):
        return None
    acceptance, confidence = (None if one is None else one[rows] for one in (returned.acceptance, returned.confidence))
    return Returned(returned.verified[rows], acceptance, confidence)
