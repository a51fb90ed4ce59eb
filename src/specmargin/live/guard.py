"""Nothing of ours may raise into the engine: every call goes through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(kw_only=True)
class Guard:
    """Runs a call or falls back: faults are counted by kind, logged once a kind, and several in a row switch us off."""

    log: Callable[[str], None]
    faults_in_a_row: int = 5
    slowest_seconds: float = 0.02
    clock: Callable[[], float] = perf_counter
    faults: Counter[str] = field(default_factory=Counter)
    decision_seconds: float = 0.0
    off: bool = False
    _in_a_row: int = 0
    _faulty: bool = False  # the step that is under way

    def call(self, kind: str, fallback: T, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, or the fallback. A slow call is a fault too, but what it returned counts."""
        if self.off:
            return fallback
        started = self.clock()
        try:
            value = function(*args, **kwargs)
        except Exception as error:  # whatever it is: it stays here
            self.decision_seconds += self.clock() - started
            self.fault(kind, f"{type(error).__name__}: {error}")
            return fallback
        taken = self.clock() - started
        self.decision_seconds += taken
        if taken > self.slowest_seconds:
            self.fault(f"slow {kind}", f"it took {taken * 1e3:.0f} ms")
        return value

    def fault(self, kind: str, detail: str) -> None:
        self.faults[kind] += 1
        self._in_a_row += 1
        self._faulty = True
        if self.faults[kind] == 1:
            self.log(f"Specmargin has a fault, {kind}: {detail}. The engine goes on; further ones are only counted.")
        if self._in_a_row >= self.faults_in_a_row and not self.off:
            self.off = True
            self.log(f"Specmargin is off after {self._in_a_row} faults in a row; the engine goes on by itself.")

    def step_done(self) -> None:
        """A step without a fault breaks the row."""
        if self._faulty:
            self._faulty = False
        else:
            self._in_a_row = 0
