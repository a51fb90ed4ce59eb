"""What the plug-in adds to whole rounds, measured in the engine: with and without its work, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import comb, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.live.stub_engine import ModelRunnerOutput, Request, configuration, specmargin_scheduler

from specmargin.cli import watch_view
from specmargin.live.narrator import Narrator
from specmargin.live.overhead import Comparisons, Shape, _rank
from specmargin.live.policy_schema import policy_text
from specmargin.live.vllm.bare import BARE
from tests.unit.live import DEPTH, policy_file

SHAPE = Shape(4, 3, True)


def wants(comparisons: Comparisons) -> bool:
    return comparisons.bare


def play(comparisons: Comparisons, seconds: Callable[[int, bool], float], rounds: int) -> int:
    """Every wish for a bare round is granted at once; how many there were."""
    bare_rounds = 0
    for number in range(rounds):
        bare = comparisons.bare
        bare_rounds += bare
        comparisons.add(seconds(number, bare), SHAPE, 16, bare=bare)
    return bare_rounds


def test_the_difference_is_found_in_noise_and_drift() -> None:
    generator = np.random.default_rng(0)
    for added in (0.0, 0.004):
        comparisons = Comparisons(every=64)

        def seconds(number: int, bare: bool, added: float = added) -> float:
            drift = 1.0 + 1e-5 * number  # contexts grow
            return float(0.01 * drift * (1.0 if bare else 1.0 + added) * generator.lognormal(0.0, 0.005))

        bare_rounds = play(comparisons, seconds, 8000)
        found = comparisons.difference()
        assert found is not None
        assert found.low <= added <= found.high
        assert found.ratio == pytest.approx(added, abs=8e-4)
        assert found.high - found.low < 0.003
        assert bare_rounds == pytest.approx(8 * found.comparisons, abs=8)


def test_a_pause_in_one_round_does_not_move_the_median() -> None:
    comparisons = Comparisons(every=32)
    play(comparisons, lambda number, bare: 1.0 if number == 300 else 0.01 * (1.0 if bare else 1.002), 3000)
    found = comparisons.difference()
    assert found is not None
    assert found.ratio == pytest.approx(0.002)


def test_the_interval_is_that_of_the_sign_test() -> None:
    """Ranks of the tables for the median (95%), counted from 0."""
    assert [_rank(count) for count in (6, 8, 9, 12, 15, 17, 20, 25, 30)] == [0, 0, 1, 2, 3, 4, 5, 7, 9]
    for count in range(6, 102):
        outside = sum(comb(count, k) for k in range(_rank(count) + 1)) / 2**count
        assert outside <= 0.025 < outside + comb(count, _rank(count) + 1) / 2**count


def test_other_rounds_end_a_comparison() -> None:
    comparisons = Comparisons(every=10)
    play(comparisons, lambda *_: 0.01, 12)
    assert wants(comparisons)
    comparisons.add(0.01, SHAPE, 16, bare=True)
    comparisons.add(0.02, None, 16, bare=False)  # a prompt: not counted
    assert wants(comparisons)
    for other in ((SHAPE._replace(drafted=2), 16), (SHAPE, 17)):
        for _ in range(7):  # a probe, or a sequence more, for a moment
            comparisons.add(0.01, *other, bare=True)
        assert wants(comparisons)
        for _ in range(2):  # for good
            comparisons.add(0.01, *other, bare=True)
        assert not wants(comparisons)
        for _ in range(17):
            comparisons.add(0.01, SHAPE, 16, bare=False)
        assert wants(comparisons)
    for _ in range(100):  # bare rounds never come
        comparisons.add(0.01, None, 16, bare=None)
    assert not wants(comparisons)
    assert comparisons.difference() is None


@given(
    st.lists(
        st.tuples(
            st.floats(1e-4, 1.0) | st.just(nan),
            st.sampled_from([SHAPE, SHAPE._replace(verified=2), None]),
            st.integers(1, 70),
            st.sampled_from([True, False, None]),
        ),
        max_size=200,
    )
)
def test_any_rounds_are_taken(rounds: list[tuple[float, Shape | None, int, bool | None]]) -> None:
    comparisons = Comparisons(window=2, every=4)
    for seconds, shape, batch, bare in rounds:
        comparisons.add(seconds, shape, batch, bare=bare)
    found = comparisons.difference()
    assert found is None or found.low <= found.ratio <= found.high


def test_watch_shows_it_once_there_is_an_interval() -> None:
    shown = {"overhead_ratio": 0.002, "overhead_ratio_low": -0.001, "overhead_ratio_high": 0.005}
    assert watch_view._overhead(shown) == "rounds take +0.2% (-0.1% to +0.5%) with the plug-in"
    assert watch_view._overhead({"overhead_comparisons_total": 3.0}) == ""


# --- in vLLM's scheduler ---


class Clock:
    """A round takes 10 ms, and the plug-in's decisions and its learning take time beside it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def slow(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slowed(*args: Any) -> Any:
            self.now += seconds
            return function(*args)

        return slowed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("time.perf_counter", made)
    return made


@pytest.fixture
def scheduler(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    with specmargin_scheduler() as kind:
        yield engine(kind, tmp_path, clock)


def engine(kind: type[Any], folder: Path, clock: Clock, **given: Any) -> Any:
    policy = folder / "stub.policy.json"
    policy.write_text(policy_text(policy_file(gated=False)))
    settings = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 60.0} | given
    made = kind(vllm_config=configuration(settings), depth=DEPTH)
    for i in range(4):
        made.add_request(Request(f"r{i}"))
    driver = made._driver
    driver.draft_depth = clock.slow(driver.draft_depth, 30e-6)
    driver._learn = clock.slow(driver._learn, 20e-6)
    return made


def serve(scheduler: Any, clock: Clock, steps: int, *, ahead: bool) -> list[tuple[int, int, bool]]:
    """Verified and drafted depth of each step, and whether it was bare. `ahead`: a step is scheduled before the outcome
    of the last one, as with async scheduling."""
    seen, waiting = [], deque[Any]()
    for _ in range(steps):
        scheduled = scheduler.schedule()
        widths = set(scheduled.num_scheduled_tokens.values())
        seen.append((max(widths) - 1, scheduled.num_spec_tokens_to_schedule, hasattr(scheduled, BARE)))
        waiting.append(scheduled)
        clock.now += 0.01
        while len(waiting) > ahead:
            done = waiting.popleft()
            ids = list(done.num_scheduled_tokens)
            rows = [[7] * min(2, tokens) for tokens in done.num_scheduled_tokens.values()]
            scheduler.update_from_output(done, ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, rows))
    return seen


@pytest.mark.parametrize("ahead", [False, True])
def test_whole_rounds_are_compared_in_the_engine(scheduler: Any, clock: Clock, ahead: bool) -> None:
    driver = scheduler._driver
    scheduler._bare.comparisons.every = 100
    narrator = Narrator(driver=driver, every_seconds=1.0, log=lambda _: None)
    narrator.look(0.0)
    assert "with the plug-in" not in narrator.line()
    seen = serve(scheduler, clock, 4000, ahead=ahead)
    bare = [depths for *depths, is_bare in seen if is_bare]
    assert 0.05 < len(bare) / len(seen) < 0.12
    assert all(verified == drafted for verified, drafted in bare)  # the depth is held
    assert driver.guard.faults == {}
    ratio, low, high = driver.board.overhead()
    assert low <= ratio <= high
    assert ratio == pytest.approx(50e-6 / 0.01, rel=0.05)  # a decision and what is learned from it, per round
    assert driver.board["overhead_comparisons_total"] >= 6
    assert f"rounds take {ratio:+.1%}" in narrator.line()
    # Nothing is lost: every step is counted and learned from.
    scheduler._bare.catch_up(scheduler.requests)
    driver.settle()
    finished = len(seen) - ahead
    assert driver.board["steps_total"] == finished
    drafted = sum(4 * verified for verified, _, _ in seen[:finished])
    assert driver.board["draft_tokens_total"] == drafted
    assert driver.board["committed_tokens_total"] == sum(4 * min(2, 1 + verified) for verified, _, _ in seen[:finished])
    assert driver.policy.kernel().learned.times.seen[:, 0].sum() == finished


def test_requests_that_join_and_leave_end_bare_rounds(scheduler: Any, clock: Clock) -> None:
    scheduler._bare.comparisons.every = 20
    numbers = iter(range(10_000))
    for _ in range(400):
        serve(scheduler, clock, 7, ahead=False)
        scheduler.add_request(Request(f"new{next(numbers)}"))
        scheduler._free_request(scheduler.running[0])
    assert scheduler._driver.guard.faults == {}
    scheduler._driver.settle()
    assert scheduler._driver.board["steps_total"] + len(scheduler._bare._put_off) == 2800


def test_no_round_is_bare_while_requests_have_limits(scheduler: Any, clock: Clock) -> None:
    scheduler._bare.comparisons.every = 20
    limited = Request("limited", sampling_params=SimpleNamespace(extra_args={"specmargin_depth": 1}))
    scheduler.add_request(limited)
    assert not any(is_bare for *_, is_bare in serve(scheduler, clock, 300, ahead=False))
    scheduler._free_request(limited)
    assert any(is_bare for *_, is_bare in serve(scheduler, clock, 300, ahead=False))


def test_captures_have_every_round(tmp_path: Path, clock: Clock) -> None:
    with specmargin_scheduler() as kind:
        made = engine(kind, tmp_path, clock, capture={"folder": str(tmp_path / "bank")})
        assert made._bare is None
        made.shutdown()


def test_a_failing_comparison_does_not_reach_the_engine(scheduler: Any, clock: Clock) -> None:
    scheduler._bare.comparisons.bare = True
    scheduler._bare.hold = lambda _: 1 / 0
    serve(scheduler, clock, 3, ahead=False)
    assert scheduler._driver.guard.faults["depth decision"] >= 1
    scheduler._bare.finished = lambda *_: 1 / 0
    serve(scheduler, clock, 6, ahead=False)
    assert scheduler._driver is None
    assert scheduler._disabled.guard.off
    assert len(serve(scheduler, clock, 5, ahead=False)) == 5
