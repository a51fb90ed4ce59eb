"""The controller's tuned numbers: every number that was chosen and not derived, in one place, each with why.

They are fields of a record that compiled code reads, so another value needs no compilation. `lab.studies.sensitivity`
halves and doubles each of them on recorded rounds; docs/results/sensitivity.md has what it printed. Comments say what a
number means in units that can be judged, and why it is there; the values themselves were set by hand. Limits that only
keep arithmetic finite stay where they are used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from specmargin.records import Rows, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    # --- times: standard deviations of ln(measured / priced) before anything was timed ---
    level_prior: float = 5.0  # the machine's speed: a factor of 150, so that the first steps alone decide it
    draft_prior: float = 0.8  # drafting: a table may be wrong by a factor of two
    plain_prior: float = 0.15  # depth 0 apart from the level, which takes what all depths have in common
    slope_prior: float = 0.65  # a fixed time that no price knows is a slope of −1, verification at 3 times its price +1
    slope_reach: float = 6.0  # depths over which slopes are alike: one cause (a kernel, a fixed time) moves several
    own_slope: float = 0.1  # what each depth has of its own, so that one timed depth does not settle its neighbours
    least_weight: float = 0.03  # per depth: verification that the table prices at nothing may still take time

    # --- times: how they change ---
    first_steps: int = 8  # of a batch size that is new, in which
    first_drift: float = 0.1  # the level may move by a third per step: it was carried over from another batch size
    least_drift: float = 4e-4  # variance of the level per step: 2%, a steady machine
    most_drift: float = 0.03  # 17%: a shared machine, whose speed jumps
    drift_rate: float = 0.1  # of ln(drift), where two deviations in a row agree: about ten steps to notice
    # Share of its prior that all else regains per step. With five times as much, known depths were probed too often.
    forgetting: float = 1.0 / 20_000.0
    octave: float = 0.3  # the same for every power of two between a batch and the one that it is carried over from
    steepest: float = 2.0  # slope that is carried over; a steeper one is a cliff (a graph, a kernel) at one batch

    # --- times: what one step says ---
    noise: float = 0.01  # first variance of a step: 10%; then it is learned
    noise_rate: float = 0.02  # in about 50 steps
    least_noise: float = 1e-4  # 1%: no single step is believed entirely
    most_noise: float = 0.25  # 50%
    outlier: float = 3.0  # deviations beyond which a step counts as no more than that
    surprise: float = 0.2  # share of a deviation that counts as noise: one step alone convinces nobody
    # Steps of a depth in which two that agree may overturn its price, which may miss a cliff. One alone may be a stall:
    # believed, it kept the depth from being probed for thousands of steps.
    first_timed: int = 4

    # --- acceptance ---
    recent_forgetting: float = 0.06  # per step, of the recent rounds: 17 steps
    least_rounds: float = 64.0  # recent rounds at least: a small batch has few per step, and chance would decide
    longer: float = 8.0  # times as long as recent rounds all rounds are remembered
    untried_forgetting: float = 0.002  # per step, at depths that were not tried: 500 steps
    prior_rounds: float = 8.0  # weight of the planned acceptance: a few steps outweigh it
    changed: float = 2.5  # deviations of recent rounds from all (1 in 80 by chance) at which earlier ones are dropped
    texts_slower: float = 32.0  # times slower than recent rounds are forgotten, how much texts differ is learned
    first_square: float = 3.0  # texts differ by three times what chance makes, until learned
    largest_square: float = 25.0  # a single change of traffic counts as no more
    shift_tries: float = 4.0  # tokens from which all depths are believed to be off alike

    # --- confidences, where they are known before verifying ---
    shift_rate: float = 0.5  # of a Newton step on the log-odds
    shift_forgetting: float = 0.005  # 200 steps: confidences are calibrated in advance, so the shift returns to none
    shift_rounds: float = 8.0  # tokens of variance that are added: a batch of one learns slowly
    largest_shift: float = 4.0  # log-odds: odds 55 times as high
    fallen: float = -1.0  # log-odds at which the depths of the look-ahead are no longer used: its sample accepted more

    # --- depth ---
    hysteresis: float = 0.001  # relative gain in goodput required for a change of depth
    probe_every: int = 8  # most steps in so many that probe another depth: one
    probe_cost: float = 0.005  # least cost of a probe, as a part of a step's tokens: an equal depth is still a change
    cliff: float = 0.005  # gain per step expected of a depth that was never timed: prices may miss a cliff

    # --- the gate in an engine's workers ---
    recent_rounds: int = 8  # of a sequence, from which its next one is expected
    enough_sequences: int = 64  # in all of these rounds: a large batch says enough about itself
    worth_cutting: float = 0.01  # gain below which all drafts are verified: recent rounds and prices are no surer
    new_look: float = 0.25  # weight of what the gate would gain, soon after the last look: few rounds say little

    # --- guard of gated drafts, whose confidences may be wrong ---
    guard_steps: float = 40.0  # gated steps over which goodput is compared with that of plain decoding
    guard_margin: float = 0.02  # by which it must be below, so that equal goodput does not disable drafts
    guard_rest: int = 200  # steps without drafts before they are tried again: five times as long as they were watched
    guard_sure: float = 3.0  # standard deviations of the tokens accepted meanwhile that must not explain it
    stalled: float = 3.0  # times as long as expected, at most, that a step counts: one waited 0.25 s for a compiler

    def as_rows(self) -> Rows[Tuning]:
        return rows_of(Tuning, **asdict(self))
