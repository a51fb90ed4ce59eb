"""Workloads: arrivals, lengths and categories of requests, drawn from the seed before the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never, cast

import numpy as np

from specmargin.errors import ScenarioError
from specmargin.records import Rows, rows_of
from specmargin.simulator.engine import BLOCK_TOKENS
from specmargin.step import FloatArray, IntArray

_MAX_REQUESTS = 20_000_000


# --- lengths ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ScenarioError(f"a length is at least 1 token, got {self.tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalLength:
    """Lognormal token counts, clipped to `least` and `most`."""

    ln_mean: float
    ln_sd: float
    least: int = 1
    most: int = 131_072

    def __post_init__(self) -> None:
        if not self.ln_sd >= 0.0 or not np.isfinite(self.ln_mean):
            raise ScenarioError(f"a lognormal length needs a finite ln_mean and ln_sd ≥ 0, got {self}")
        if not 1 <= self.least <= self.most:
            raise ScenarioError(f"a lognormal length needs 1 ≤ least ≤ most, got {self.least} and {self.most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ScenarioError(f"a uniform length needs 1 ≤ least ≤ most, got {self.least} and {self.most}")


Length = FixedLength | LognormalLength | UniformLength


def length_around(tokens: int, range_ratio: float) -> FixedLength | UniformLength:
    """Uniform over `tokens` · (1 ± `range_ratio`), as vLLM's `--random-range-ratio` draws; 0: all equal.

    Lengths of a few tokens vary less than vLLM's, so that the mean stays `tokens` and the least is 1.
    SGLang's option of the same name differs: from `tokens` · ratio to `tokens`.
    """
    if not 0.0 <= range_ratio < 1.0:
        raise ScenarioError(f"a range ratio is at least 0 and below 1, got {range_ratio:g}")
    around = min(math.ceil(tokens * range_ratio), tokens - 1)
    return UniformLength(least=tokens - around, most=tokens + around) if around > 0 else FixedLength(tokens=tokens)


def draw_lengths(length: Length, count: int, generator: np.random.Generator) -> IntArray:
    match length:
        case FixedLength():
            return np.full(count, length.tokens, dtype=np.int64)
        case LognormalLength():
            drawn = np.round(np.exp(generator.normal(length.ln_mean, length.ln_sd, count)))
            return np.clip(drawn, length.least, length.most).astype(np.int64)
        case UniformLength():  # every quantile once, in random order, so that the mean is that of the range
            quantile = (generator.permutation(count) + 0.5) / count
            return length.least + (quantile * (length.most + 1 - length.least)).astype(np.int64)
        case _:
            assert_never(length)


def mean_tokens(length: Length) -> float:
    match length:
        case FixedLength():
            return float(length.tokens)
        case UniformLength():
            return (length.least + length.most) / 2.0
        case LognormalLength():
            return _clipped_mean(length)
        case _:
            assert_never(length)


def _clipped_mean(length: LognormalLength) -> float:
    """Of a lognormal that is clipped at both ends."""
    if length.ln_sd == 0.0 or length.least == length.most:
        return float(min(max(math.exp(min(length.ln_mean, 700.0)), length.least), length.most))

    def below(tokens: int, shift: float) -> float:
        return 0.5 + 0.5 * math.erf((math.log(tokens) - length.ln_mean - shift) / (length.ln_sd * math.sqrt(2.0)))

    between = below(length.most, length.ln_sd**2) - below(length.least, length.ln_sd**2)
    whole = math.exp(min(length.ln_mean + length.ln_sd**2 / 2.0, 700.0))
    return length.least * below(length.least, 0.0) + length.most * (1.0 - below(length.most, 0.0)) + whole * between


# --- arrivals ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`users` clients, each sending its next request when the previous one finishes."""

    users: int
    requests: int

    def __post_init__(self) -> None:
        if self.users < 1 or self.requests < 1:
            raise ScenarioError("a closed loop needs at least one user and one request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Poisson arrivals, in bursts of `burst` requests at the same mean rate.

    As many as asked for arrive within `requests / requests_per_second`: the rate of a run does not differ by chance.
    """

    requests_per_second: float
    requests: int
    burst: int = 1

    def __post_init__(self) -> None:
        if not 0.0 < self.requests_per_second < np.inf:
            raise ScenarioError(f"a request rate must be positive, got {self.requests_per_second:g}")
        if self.requests < 1 or self.burst < 1:
            raise ScenarioError("arrivals need at least one request, and bursts at least one request each")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """Poisson arrivals at a rate that changes over time, linear between the given hours."""

    hours: tuple[float, ...]
    requests_per_second: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.hours) < 2 or len(self.hours) != len(self.requests_per_second):
            raise ScenarioError("a rate schedule needs at least two hours, and a rate for each")
        if np.any(np.diff(self.hours) <= 0) or self.hours[0] != 0.0:
            raise ScenarioError("the hours of a rate schedule start at 0 and rise")
        if not np.all(np.isfinite(self.requests_per_second)) or min(self.requests_per_second) < 0.0:
            raise ScenarioError("the rates of a schedule must not be negative")
        if max(self.requests_per_second) <= 0.0:
            raise ScenarioError("a rate schedule needs a rate above 0 somewhere")

    @property
    def seconds(self) -> float:
        return self.hours[-1] * 3600.0

    @property
    def requests(self) -> int:
        """Expected; drawn are more or fewer."""
        return int(np.trapezoid(self.requests_per_second, self.hours) * 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHashes:
    """Hashes of the blocks of every prompt: equal hashes are equal blocks after equal blocks."""

    ids: IntArray  # of all requests, one after another
    first: IntArray  # (requests + 1): where those of a request begin
    block_tokens: int

    def __post_init__(self) -> None:
        if self.block_tokens < BLOCK_TOKENS or self.block_tokens % BLOCK_TOKENS:
            raise ScenarioError(
                f"blocks with hashes have a multiple of {BLOCK_TOKENS} tokens, got hash_tokens = {self.block_tokens}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded requests: arrival, prompt and output of each, and what else was recorded."""

    arrival_seconds: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    source: str
    hashes: BlockHashes | None = None
    priority: IntArray | None = None
    cancel_tokens: IntArray | None = None  # 0: not cancelled
    cancel_seconds: FloatArray | None = None  # after arrival; infinite: not cancelled

    def __post_init__(self) -> None:
        if self.arrival_seconds.size == 0:
            raise ScenarioError(f"{self.source}: has no requests")
        if not np.all(np.isfinite(self.arrival_seconds)):
            raise ScenarioError(f"{self.source}: arrival times must be numbers")
        if min(int(self.prompt_tokens.min()), int(self.output_tokens.min())) < 1:
            raise ScenarioError(f"{self.source}: prompts and outputs have at least one token")

    @property
    def requests(self) -> int:
        return int(self.arrival_seconds.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Requests that are drawn already, in order of arrival."""

    rows: Rows[Request]

    @property
    def requests(self) -> int:
        return self.rows.size


Arrivals = ClosedLoop | Poisson | RateSchedule | Trace | Drawn


# --- clients ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations: each turn's prompt is the history and the workload's `prompt` of new tokens.

    Arrivals are then those of sessions: rates are of sessions, users have one each, `requests` counts turns.
    """

    turns: Length
    think_seconds: float = 0.0  # mean between an answer and the next turn, exponential
    shared_tokens: int = 0  # a system prompt that sessions of one category have in common

    def __post_init__(self) -> None:
        if not 0.0 <= self.think_seconds < np.inf or self.shared_tokens < 0:
            raise ScenarioError("sessions need think_seconds and shared_tokens of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancels:
    """A share of the clients disconnects after this many output tokens or seconds, whichever comes first."""

    share: float
    tokens: Length | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ScenarioError(f"the share of cancelled requests must lie in 0..1, got {self.share:g}")
        if self.share > 0.0 and self.tokens is None and self.seconds is None:
            raise ScenarioError("cancelled requests need a number of tokens or seconds after which they are cancelled")


# --- workloads ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A kind of request: its weight, and its lengths where they differ from the workload's."""

    name: str
    weight: float = 1.0
    prompt: Length | None = None
    output: Length | None = None
    priority: int | None = None  # lower is served first; None: 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight < np.inf:
            raise ScenarioError(f"category {self.name}: the weight must not be negative, got {self.weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    arrivals: Arrivals
    prompt: Length
    output: Length
    categories: tuple[Category, ...] = (Category(name="all"),)
    sessions: Sessions | None = None
    cancels: Cancels | None = None

    def __post_init__(self) -> None:
        if not self.categories or sum(category.weight for category in self.categories) <= 0.0:
            raise ScenarioError("a workload needs a category with a weight above 0")
        if self.sessions is not None and not isinstance(self.arrivals, ClosedLoop | Poisson):
            raise ScenarioError("sessions start at a rate or in a closed loop; a trace has its own requests")

    @property
    def users(self) -> int:
        """Of a closed loop; 0: open loop."""
        return self.arrivals.users if isinstance(self.arrivals, ClosedLoop) else 0

    @property
    def offered_tokens_per_second(self) -> float | None:
        """Output tokens that arrive at a constant rate; None: users and sessions send as much as is served, cancelled
        requests less than they ask for, and other rates change."""
        if not isinstance(self.arrivals, Poisson) or self.sessions is not None or self.cancels is not None:
            return None
        return self.arrivals.requests_per_second * self.mean_output

    @property
    def mean_output(self) -> float:
        """Output tokens per request, as described; a trace has its own."""
        tokens = sum(each.weight * mean_tokens(each.output or self.output) for each in self.categories)
        return tokens / sum(each.weight for each in self.categories)

    def with_requests(self, requests: int) -> Workload:
        """More or fewer requests of the same closed loop or rate."""
        if not isinstance(self.arrivals, ClosedLoop | Poisson):
            raise ScenarioError("a trace or a schedule of rates has its own number of requests")
        return replace(self, arrivals=replace(self.arrivals, requests=requests))


class Request:
    """One request: as it is drawn, and what the engine makes of it. A row, as a step reads most fields together."""

    prompt_tokens: int
    output_tokens: int
    category: int
    computed: int  # tokens in the cache
    emitted: int
    blocks: int  # of KV that it holds
    next_round: int  # that its next draft replays
    held: int  # pending draft tokens, to be verified in the next step
    verify: int  # how many of them the policy verifies
    preemptions: int
    arrival_seconds: float  # infinite while it waits for an earlier request of a closed loop
    first_token_seconds: float  # NaN until there is one
    finish_seconds: float


def draw(workload: Workload, seed: int) -> Rows[Request]:
    """In order of arrival. Arrivals, lengths and categories are drawn from separate streams: changing one leaves the
    others unchanged."""
    if isinstance(workload.arrivals, Drawn):
        return cast("Rows[Request]", np.array(workload.arrivals.rows))  # a run writes into its requests
    arrival = _arrivals(workload.arrivals, np.random.default_rng([seed, 1]))
    count = arrival.size
    weights = np.array([category.weight for category in workload.categories])
    category = np.random.default_rng([seed, 2]).choice(weights.size, size=count, p=weights / weights.sum())
    prompts, outputs = np.random.default_rng([seed, 3]), np.random.default_rng([seed, 4])
    arrivals = workload.arrivals
    if isinstance(arrivals, Trace):
        order = np.argsort(arrivals.arrival_seconds, kind="stable")
        prompt, output = arrivals.prompt_tokens[order], arrivals.output_tokens[order]
    else:
        categories = workload.categories
        prompt = lengths_by_category([each.prompt or workload.prompt for each in categories], category, prompts)
        output = lengths_by_category([each.output or workload.output for each in categories], category, outputs)
    requests = rows_of(Request, count, first_token_seconds=np.nan, finish_seconds=np.nan)
    requests["arrival_seconds"][:], requests["category"][:] = arrival, category
    requests["prompt_tokens"][:], requests["output_tokens"][:] = prompt, output
    return requests


def lengths_by_category(lengths: Sequence[Length], category: IntArray, generator: np.random.Generator) -> IntArray:
    """`lengths`: of each category; `category`: of each request."""
    if len(set(lengths)) == 1:
        return draw_lengths(lengths[0], category.size, generator)
    drawn = np.array([draw_lengths(length, category.size, generator) for length in lengths])
    return np.asarray(drawn[category, np.arange(category.size)])


def _arrivals(arrivals: Arrivals, generator: np.random.Generator) -> FloatArray:
    match arrivals:
        case ClosedLoop():
            arrival_seconds = np.full(arrivals.requests, np.inf)
            arrival_seconds[: arrivals.users] = 0.0
            return arrival_seconds
        case Poisson():
            bursts = -(-arrivals.requests // arrivals.burst)
            moments = np.cumsum(generator.exponential(1.0, bursts + 1))
            moments *= bursts * arrivals.burst / arrivals.requests_per_second / moments[-1]
            return np.repeat(moments[:-1], arrivals.burst)[: arrivals.requests]
        case RateSchedule():
            return _scheduled(arrivals, generator)
        case Drawn():
            return arrivals.rows["arrival_seconds"]
        case Trace():
            ordered = np.sort(arrivals.arrival_seconds, kind="stable")
            return np.asarray(ordered - ordered[0])
        case _:
            assert_never(arrivals)


def _scheduled(schedule: RateSchedule, generator: np.random.Generator) -> FloatArray:
    """Inhomogeneous Poisson arrivals, by inversion of the cumulative rate."""
    seconds = np.linspace(0.0, schedule.seconds, max(int(schedule.seconds), 1) + 1)
    rate = np.interp(seconds, np.array(schedule.hours) * 3600.0, schedule.requests_per_second)
    expected = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2.0 * np.diff(seconds))])
    total = float(expected[-1])
    if total > _MAX_REQUESTS:
        raise ScenarioError(f"this schedule has {total:,.0f} requests; the limit is {_MAX_REQUESTS:,}")
    count = int(generator.poisson(total))
    if count == 0:
        raise ScenarioError(f"this schedule expects {total:.2g} requests and drew none; raise its rates")
    return np.asarray(np.interp(np.sort(generator.random(count)) * total, expected, seconds))
