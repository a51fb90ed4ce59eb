"""What a server shows of itself without the plug-in: load, speculation and settings, as `doctor` reads them.

Made from two readings of its metrics and what it says of its settings, or from lines of its log. None everywhere means
that it was not shown, never that it is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the server was started with, as far as it says so."""

    release: str | None = None
    model: str | None = None  # a Hugging Face id, or a path on the server
    gpu: str | None = None  # as the driver names it
    gpus: int | None = None
    speculates: bool | None = None  # configured
    method: str | None = None  # the engine's word: "eagle3", "mtp", "ngram", "draft_model", …
    depth: int | None = None  # the deepest draft
    schedule: tuple[tuple[int, int, int], ...] = ()  # first batch, last batch, depth
    largest_graph: int | None = None  # positions of the largest CUDA graph; 0: no graphs
    graph_mode: str | None = None  # the engine's word: "FULL_AND_PIECEWISE", "PIECEWISE", "NONE", …
    draft_graphs: bool | None = None  # whether drafting runs in graphs
    eager: bool | None = None  # started so: vLLM's --enforce-eager, SGLang's --disable-cuda-graph
    overlaps: bool | None = None  # whether the host prepares a step while the GPU runs one; False: told not to
    max_sequences: int | None = None
    max_step_tokens: int | None = None
    max_context: int | None = None
    kv_tokens: int | None = None  # room of the KV cache
    temperature: float | None = None  # the default of the server
    plug_in: bool | None = None  # whether Specmargin's plug-in runs in it
    other: dict[str, str] = field(default_factory=dict)  # what else it says, in the engine's words

    def filled_from(self, others: ServerSettings) -> ServerSettings:
        """What these lack, from others: of the same server's log, or of its pages."""
        missing = {one.name: getattr(others, one.name) for one in fields(self) if getattr(self, one.name) in _NOT_SAID}
        return replace(self, **missing)


_NOT_SAID: tuple[Any, ...] = (None, (), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the log, or one reading: what is needed to see acceptance change with load and with context."""

    at_seconds: float | None = None
    running: float | None = None
    sequences_per_step: float | None = None  # over all replicas, as counted since the moment before
    seconds_per_round: float | None = None  # between two outputs of a sequence, mean since the moment before
    accept_length: float | None = None
    context: float | None = None  # tokens per running sequence
    generated_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A server over some seconds."""

    engine: str  # a name of `ENGINES` in modes.py
    source: str  # address, file, or "standard input"
    replicas: int = 1  # of data parallelism: load is summed over them, steps are of one
    settings: ServerSettings = field(default_factory=ServerSettings)
    seconds: float | None = None  # between the readings, or covered by the log

    # load
    running: float | None = None  # sequences, mean
    waiting: float | None = None
    steps_per_second: float | None = None  # of one replica, idle time included
    sequences_per_step: float | None = None  # that decode, of one replica
    generated_tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None  # computed: without what the prefix cache had
    prompt_tokens_per_request: float | None = None
    output_tokens_per_request: float | None = None
    context: float | None = None  # tokens per running sequence
    seconds_per_output_token: float | None = None  # TPOT, mean of requests
    seconds_per_round: float | None = None  # between two outputs of a sequence (vLLM's inter-token latency), mean
    seconds_to_first_token: float | None = None
    kv_share: float | None = None  # of the KV cache in use, 0 to 1
    preemptions: float | None = None  # in these seconds
    cached_prompt_share: float | None = None  # hit rate of the prefix cache
    requests: float | None = None  # that ended in these seconds
    ended_at_limit: float | None = None  # share of those requests that ended at their token limit
    equal_prompts: bool | None = None  # whether the prompts of those requests lie in one bucket of a histogram
    equal_outputs: bool | None = None
    distinct_experts: float | None = None  # per step and layer, as the plug-in counts them

    graph_share: float | None = None  # of decode steps that ran in CUDA graphs

    # speculation
    speculates: bool | None = None  # configured
    rounds: float | None = None  # one per sequence and step with a draft
    drafted_per_round: float | None = None
    accepted_share: float | None = None  # of drafted tokens
    accept_length: float | None = None  # tokens per round, with the bonus token
    survival: tuple[float, ...] = ()  # share of rounds in which position 1, 2, … was accepted

    estimated: tuple[str, ...] = ()  # fields of this that are worked out from others, not counted by the server
    moments: tuple[Moment, ...] = ()
    not_shown: tuple[str, ...] = ()  # what this engine's metrics or log cannot show, in words
