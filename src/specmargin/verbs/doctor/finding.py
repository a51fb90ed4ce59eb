"""What `doctor` finds: causes on positive evidence, and differences whose cause the metrics do not show."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from specmargin.decisions.schedule import DepthTable, Schedule
from specmargin.decisions.setting import Setting
from specmargin.formats import find_engine
from specmargin.formats.base import ScheduleRequest, filled
from specmargin.formats.rules import slots
from specmargin.live.observation import Observation, ServerSettings
from specmargin.verbs.doctor.expected import Expected
from specmargin.verbs.doctor.machine import Machine
from specmargin.verbs.doctor.seen import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause: what shows it, what it costs, and what fixes it."""

    id: str
    title: str
    evidence: tuple[str, ...]
    gain: float | None  # by which tokens per second would grow without it; None: not known
    fix: str
    sure: bool = True  # False: a setting was not read, and the engine's default is taken for it

    @property
    def loss(self) -> float | None:
        """Share of the tokens per second that the server would reach without it."""
        return None if self.gain is None else self.gain / (1.0 + self.gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExcluded:
    """What the metrics cannot show, and the check that would."""

    id: str
    title: str
    check: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A server as it was seen, beside what is expected of it; None where model or GPU are not known."""

    seen: Seen
    expected: Expected | None
    machine: Machine | None = None  # where the server runs on this machine

    @property
    def of(self) -> Observation:
        return self.seen.observation

    @property
    def settings(self) -> ServerSettings:
        return self.of.settings

    @property
    def title(self) -> str:
        return find_engine(self.of.engine).title

    def gain(self, better: float | None, now: float | None) -> float | None:
        """Of tokens per second, if decoding were so much faster: prompts take as long as before."""
        if self.expected is None or not better or not now:
            return None
        share = self.prompt_share[0]
        return 1.0 / ((1.0 - share) * now / better + share) - 1.0

    @cached_property
    def prompt_share(self) -> tuple[float, float, float]:
        """Of the time: expected, least, most; by the prices, scaled to the rounds that were seen.

        Rounds that are shorter than expected show a machine that is faster than its prices, in prefill too. Longer ones
        may have a cause of their own: they only scale a datasheet, which bounds prefill and decoding alike.
        """
        expected, took = self.expected, self.seen.round_seconds
        if expected is None:
            return 0.0, 0.0, 0.0
        share, least, most = expected.prompt_share
        longer_too = self.is_slow and not expected.knows_scale
        if took is None or not expected.batch_shown or (took >= expected.round_seconds.value and not longer_too):
            return share, least, most

        def as_seen(part: float) -> float:
            # took = r × decoding / (1 − r × part), with the same factor r on both
            shown = part * took / (expected.decode_seconds + took * part)
            return shown if longer_too else min(shown, part)

        return as_seen(share), as_seen(least), as_seen(most)

    @cached_property
    def slow(self) -> float | None:
        """Seen time per round over the longest that is expected; None where either is unknown."""
        took, expected = self.seen.round_seconds, self.expected
        if took is None or expected is None or not expected.batch_shown:
            return None
        return took / expected.round_seconds.high

    @property
    def is_slow(self) -> bool:
        return self.slow is not None and self.slow > 1.0

    # --- fixes ---

    def fix(self, cause: str, **values: object) -> str:
        by_engine = _fixes()[cause]
        text = by_engine.get(self.of.engine) or by_engine.get("any") or next(iter(by_engine.values()))
        return text.format(**values)

    def flags(self, depth: int) -> str:
        """The engine's own words for one depth at every batch."""
        expected, engine = self.expected, find_engine(self.of.engine)
        if depth == 0:
            return self.fix("depth-off")
        if expected is None or expected.choice.kind == "free" or self.of.engine in _ONE_DEPTH:
            return _DEPTH_OPTIONS[self.of.engine].format(depth=depth)
        grid, schedule = expected.grid, Schedule.fixed(depth, last=1)
        setting = Setting.of(expected.scenario, max_depth=expected.deepest)
        request = ScheduleRequest(
            table=DepthTable.of(grid, setting.allowed(grid), grid.depths.astype(int)),
            batches=(1,),
            drafter_kind=expected.choice.kind,
            drafter_model=expected.choice.model,
            layout=expected.scenario.layout,
            min_gain=0.0,
            hurdle_by_depth=(0.0,) * expected.deepest,
        )
        rule, config = engine.rule(request), engine.express(request, schedule)
        return filled(config.text, slots(rule, schedule, request.hurdle_by_depth))


#: Depth alone, where nothing else of the setting changes.
_DEPTH_OPTIONS = {
    "vllm": '"num_speculative_tokens": {depth} in --speculative-config',
    "sglang": "--speculative-num-steps {depth}",
    "trtllm": "max_draft_len: {depth} in speculative_config",
    "llamacpp": "--spec-draft-n-max {depth}",
}
_ONE_DEPTH = ("trtllm", "llamacpp")  # whose whole setting is no single line, or has a threshold of its own


@cache
def _fixes() -> dict[str, dict[str, str]]:
    text = resources.files("specmargin.verbs.doctor").joinpath("fixes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
