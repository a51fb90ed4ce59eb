"""Rounds of vLLM that run without the plug-in's work, for `live.overhead`.

A bare step repeats the last depth and, with a gate in the workers, the last order. Its outcome is read when the bare
rounds are over, so that nothing is lost to the counters or to learning. Steps with prompts, or whose requests have
drafts of unequal length, are never bare. What the workers do themselves is not part of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specmargin.live.driver import Driver
from specmargin.live.gating import ORDER, GateOrder
from specmargin.live.overhead import Comparisons, Shape
from specmargin.live.settings_schema import Mode
from specmargin.live.vllm.names import WANTS_CONFIDENCE
from specmargin.live.vllm.outcomes import step_done

BARE = "specmargin_bare"  # attribute of the scheduler's output


class BareRounds:
    """Of one scheduler."""

    def __init__(self, driver: Driver, comparisons: Comparisons | None = None) -> None:
        self.driver = driver
        self.comparisons = comparisons or Comparisons(window=max(8, driver.learn_every))
        self._order = GateOrder()  # of the last finished step that is compared
        self._put_off: list[tuple[Any, Any, float]] = []
        self._scheduled_bare = self._scheduled_full = False  # since the last outcome
        self._ended_bare = False  # the last outcome

    @property
    def wanted(self) -> bool:
        """Whether the next step should be bare, if it is one that can be."""
        return self.comparisons.bare and not self.driver.verifies_by_request

    def decided(self) -> None:
        """A step is scheduled with the plug-in's work."""
        self._scheduled_full = True

    def hold(self, scheduled: Any) -> bool:
        """Decide nothing in this step; False: it is not of the shape that is compared."""
        shape, wanted = shape_of(scheduled), self.comparisons.shape
        if shape is None or wanted is None or shape.verified != wanted.verified:
            return False
        if self.driver.mode is not Mode.OBSERVE:
            scheduled.num_spec_tokens_to_schedule = wanted.drafted
        setattr(scheduled, WANTS_CONFIDENCE, False)
        if self.driver.device_gate:
            setattr(scheduled, ORDER, self._order)
        setattr(scheduled, BARE, True)
        self.driver.hold(wanted.drafted)
        self._scheduled_bare = True
        return True

    def put_off(self, scheduled: Any, output: Any, seconds: float) -> None:
        """A bare step is finished."""
        self._put_off.append((scheduled, output, seconds))
        self._add(scheduled, shape_of(scheduled), seconds, bare=True)

    def catch_up(self, requests: Mapping[str, Any]) -> None:
        """Read the outcomes of bare steps."""
        if self._put_off:
            late, self._put_off = self._put_off, []
            for scheduled, output, seconds in late:
                step = step_done(scheduled, output, requests, self.driver)
                step.seconds = seconds
                self.driver.done(step, scheduled.num_spec_tokens_to_schedule)

    def finished(self, scheduled: Any, seconds: float) -> None:
        """A step with the plug-in's work is finished."""
        shape = shape_of(scheduled)
        if self._add(scheduled, shape, seconds, bare=False):
            self.driver.board.show_overhead(self.comparisons.difference())
        if shape == self.comparisons.shape:
            self._order = getattr(scheduled, ORDER, self._order)

    def _add(self, scheduled: Any, shape: Shape | None, seconds: float, *, bare: bool) -> bool:
        """The time from one outcome to the next is that of one kind only if both ended alike, and nothing of the other
        kind was scheduled in between."""
        other = self._scheduled_full if bare else self._scheduled_bare
        alike = self._ended_bare == bare and not other
        self._ended_bare, self._scheduled_bare, self._scheduled_full = bare, False, False
        count = len(scheduled.num_scheduled_tokens)
        return self.comparisons.add(seconds, shape, count, bare=bare if alike else None)


def shape_of(scheduled: Any) -> Shape | None:
    """None: not all requests decode with drafts of the same length. Takes the same time for any number of requests."""
    count, tokens = len(scheduled.num_scheduled_tokens), scheduled.total_num_scheduled_tokens
    if count == 0 or tokens % count or len(scheduled.scheduled_spec_decode_tokens) != (count if tokens > count else 0):
        return None
    order = getattr(scheduled, ORDER, None)
    return Shape(tokens // count, int(scheduled.num_spec_tokens_to_schedule or 0), order is None or order.gated)
