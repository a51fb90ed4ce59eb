"""The settings of a live engine. Nothing here imports Numba: a server reads them while it starts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from specmargin.errors import EngineError
from specmargin.schema import StrictModel, first_complaint

Count = Annotated[int, Field(ge=0)]
Range = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Count]  # first batch, last batch, depth
_LARGEST_BATCH = 65_536


def _check_ranges(ranges: list[Range]) -> list[Range]:
    """Apply the rules of vLLM's `num_speculative_tokens_per_batch_size`."""
    end = 0
    for first, last, depth in sorted(ranges):
        if last < first or last > _LARGEST_BATCH:
            raise ValueError(f"the range [{first}, {last}, {depth}] must end in {first}..{_LARGEST_BATCH}")
        if first <= end:
            raise ValueError(f"the ranges that hold batch {first} overlap")
        if end == 0 and first != 1:
            raise ValueError(f"the first range must begin at batch 1, not {first}")
        end = last
    if not ranges:
        raise ValueError("needs at least one range [first, last, depth]")
    return ranges


Ranges = Annotated[list[Range], AfterValidator(_check_ranges)]


def depths_by_batch(ranges: Iterable[Range], last: int) -> list[int]:
    """For batches 0 to `last`. As in vLLM, gaps and the tail keep the depth of the range before them."""
    depths = [0] * (last + 1)
    for first, _, depth in sorted(ranges):
        depths[first:] = [depth] * len(depths[first:])
    return depths


class Mode(StrEnum):
    """What the plug-in does. The metric `mode` is the position in this list, so new modes go to its end."""

    OBSERVE = "observe"
    SCHEDULE = "schedule"
    ADAPTIVE = "adaptive"


class GateKind(StrEnum):
    """Who decides on the GPU how much of each draft is verified."""

    AUTO = "auto"  # Specmargin, where the policy expects it to pay
    ON = "on"  # Specmargin, wherever vLLM supports it
    NATIVE = "native"  # vLLM's adaptive verification
    OFF = "off"  # vLLM's configuration is left as it is


class Curve(StrEnum):
    """What vLLM's own gate takes steps to cost."""

    PRICES = "prices"  # the policy's prices
    PROFILED = "profiled"  # timed at start-up with random tokens
    VLLM = "vllm"  # timed at start-up with padding, as vLLM does


class GateSettings(StrictModel):
    """The gate of vLLM's second model runner."""

    kind: GateKind = GateKind.AUTO
    curve: Curve | None = None  # of kind native; None: prices if there is a policy, else profiled

    @model_validator(mode="after")
    def _fits(self) -> GateSettings:
        if self.curve is not None and self.kind is not GateKind.NATIVE:
            raise ValueError("'curve' needs kind native: Specmargin's own gate decides by the policy's prices")
        return self


class CaptureSettings(StrictModel):
    """Capture of rounds, steps and routed experts as banks."""

    folder: Path
    routing: bool = True
    rounds_per_second: Annotated[float, Field(gt=0.0)] = 5000.0
    max_megabytes: Annotated[float, Field(gt=0.0)] = 1024.0
    part_seconds: Annotated[float, Field(gt=0.0)] = 30.0


class Settings(StrictModel):
    """`additional_config={"specmargin": …}`, or the file that SPECMARGIN_CONFIG names."""

    mode: Mode = Mode.OBSERVE
    policy: Path | None = None
    schedule: Ranges | None = None
    classes: dict[str, Ranges] = Field(default_factory=dict)
    candidates: tuple[Count, ...] | None = None
    graphs: bool = True  # request CUDA graphs for every depth that may be chosen
    gate: GateSettings = Field(default_factory=GateSettings)
    capture: CaptureSettings | None = None
    faults_in_a_row: Annotated[int, Field(ge=1)] = 5
    slowest_decision_seconds: Annotated[float, Field(gt=0.0)] = 0.05
    log_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    board: Path | None = None  # set by the plug-in: folder of the counters that engine and front end share

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        """Accept `capture: DIR` for `capture: {folder: DIR}`, and `gate: KIND` for `gate: {kind: KIND}`."""
        if isinstance(given, dict):
            for name, inside in (("capture", "folder"), ("gate", "kind")):
                if isinstance(given.get(name), str):
                    given = given | {name: {inside: given[name]}}
        return given

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if self.mode is Mode.ADAPTIVE and self.policy is None:
            raise ValueError(
                "mode adaptive needs 'policy': the file that `specmargin plan MODEL --gpu GPU --policy FILE` writes"
            )
        if self.mode is Mode.SCHEDULE and self.policy is None and not self.schedule:
            raise ValueError("mode schedule needs 'schedule': [[first, last, depth], …], or a 'policy' that has one")
        if self.classes and self.mode is not Mode.SCHEDULE:
            raise ValueError("'classes' needs mode schedule")
        if self.gate.kind is GateKind.ON and self.mode is not Mode.ADAPTIVE:
            raise ValueError("gate on needs mode adaptive")
        if self.gate.curve is Curve.PRICES and self.policy is None:
            raise ValueError("gate curve prices needs 'policy', the file that has them")
        return self

    @property
    def gate_kind(self) -> GateKind:
        """With `auto` only mode adaptive gates."""
        automatic = self.gate.kind is GateKind.AUTO and self.mode is not Mode.ADAPTIVE
        return GateKind.OFF if automatic else self.gate.kind

    @property
    def gate_curve(self) -> Curve:
        return self.gate.curve or (Curve.PROFILED if self.policy is None else Curve.PRICES)


def read_settings(given: object, source: str) -> Settings:
    """Validate settings; a mistake is a one-sentence error."""
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise EngineError(f"{source}: {first_complaint(error)}") from None
