"""Keeps exceptions out of the engine: every call into Specmargin goes through a guard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import ParamSpec, TypeVar

from specmargin.errors import EngineError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(kw_only=True)
class Guard:
    """Runs a call or falls back. Faults are counted and logged once per kind; several in a row disable Specmargin."""

    log: Callable[[str], None]
    faults_in_a_row: int = 5
    slowest_seconds: float = 0.02
    clock: Callable[[], float] = perf_counter
    faults: Counter[str] = field(default_factory=Counter)
    decision_seconds: float = 0.0  # in all calls: what Specmargin adds to the steps
    off: bool = False
    _in_a_row: int = 0
    _faulty: bool = False  # in the current step

    def call(self, kind: str, fallback: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, or the fallback. A slow call is a fault too, but its result is used."""
        if self.off:
            return fallback
        started, before, faults = self.clock(), self.decision_seconds, self._in_a_row
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            self.decision_seconds = before + self.clock() - started
            self.fault(kind, f"{type(error).__name__}: {error}")
            return fallback
        seconds = self.clock() - started
        # Calls inside this one are not counted twice, and neither are their faults.
        self.decision_seconds = before + seconds
        if seconds > self.slowest_seconds and self._in_a_row == faults:
            self.fault(f"slow {kind}", f"took {seconds * 1e3:.0f} ms")
        return value

    def fault(self, kind: str, detail: str) -> None:
        self.faults[kind] += 1
        self._in_a_row += 1
        self._faulty = True
        if self.faults[kind] == 1:
            self.log(f"Specmargin fault ({kind}): {detail}. The engine continues; further faults are only counted.")
        if self._in_a_row >= self.faults_in_a_row and not self.off:
            self.off = True
            self.log(f"Specmargin is disabled after {self._in_a_row} faults in a row; the engine continues without it.")

    def step_done(self) -> None:
        """A step without a fault resets the count of consecutive faults."""
        if self._faulty:
            self._faulty = False
        else:
            self._in_a_row = 0


def reason(error: Exception) -> str:
    """Why a plug-in did not start, for a log line."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
