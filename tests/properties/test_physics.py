"""The physics, as properties: what must hold whatever the model, the device and the load."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from specmargin.acceptance.survival import Survival, break_even_acceptance, parse_acceptance
from specmargin.architecture.types import ExpertPool
from specmargin.catalog.lookup import device_names, find_model, model_names
from specmargin.decisions.pricer import Pricer
from specmargin.errors import ParallelismError
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel, RooflineForm
from specmargin.prices.model import EngineTime
from specmargin.prices.roofline import Roofline
from specmargin.routing import coverage
from specmargin.sources import assumed
from specmargin.step import FloatArray, Step
from tests.scenarios import pricer

pools = st.integers(1, 512).flatmap(
    lambda n: st.integers(1, n).map(lambda k: ExpertPool(experts=n, experts_per_token=k))
)
models = st.sampled_from(model_names())
devices = st.sampled_from(device_names())
depths = st.integers(0, 16)
batches = st.integers(1, 512)
contexts = st.sampled_from([0, 1, 100, 1024, 8192])


@given(pools)
def test_one_token_touches_exactly_k(pool: ExpertPool) -> None:
    assert np.isclose(coverage.uniform_mean(pool, 1), pool.experts_per_token)
    assert abs(float(coverage.uniform_variance(pool, 1))) < 1e-6


@given(pools, st.integers(1, 4000))
def test_coverage_never_exceeds_n_and_never_falls(pool: ExpertPool, positions: int) -> None:
    now, more = coverage.uniform_mean(pool, positions), coverage.uniform_mean(pool, positions + 1)
    assert pool.experts_per_token - 1e-9 <= now <= more + 1e-9 <= pool.experts + 2e-9


@given(pools, st.integers(1, 2000), st.integers(1, 2000))
def test_coverage_is_subadditive(pool: ExpertPool, left: int, right: int) -> None:
    """Two batches apart touch at least as many experts, counted twice, as together."""
    together = coverage.uniform_mean(pool, left + right)
    assert together <= coverage.uniform_mean(pool, left) + coverage.uniform_mean(pool, right) + 1e-9


def _inclusion(weights: FloatArray, k: int) -> FloatArray:
    """Probabilities proportional to the weights, none above 1, that add up to k."""
    low, high = 0.0, k / weights.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * weights, 1.0).sum() < k else (low, middle)
    return np.asarray(np.minimum(high * weights, 1.0))


@given(pools, st.integers(1, 300), st.integers(0, 2**31))
def test_skew_covers_no_more_than_uniform(pool: ExpertPool, positions: int, seed: int) -> None:
    hit = _inclusion(np.random.default_rng(seed).random(pool.experts) ** 4 + 1e-9, pool.experts_per_token)
    assert np.isclose(hit.sum(), pool.experts_per_token)
    assert coverage.skewed_mean(hit, positions) <= coverage.uniform_mean(pool, positions) + 1e-6


def test_uniform_variance_is_that_of_a_simulation() -> None:
    pool, positions, rounds = ExpertPool(experts=32, experts_per_token=4), 6, 20_000
    rng = np.random.default_rng(1)
    touched = np.zeros((rounds, pool.experts), dtype=bool)
    for _ in range(positions):
        chosen = rng.random((rounds, pool.experts)).argpartition(pool.experts_per_token, axis=1)[:, :4]
        np.put_along_axis(touched, chosen, True, axis=1)
    distinct = touched.sum(axis=1)
    assert np.isclose(distinct.mean(), coverage.uniform_mean(pool, positions), rtol=0.005)
    assert np.isclose(distinct.var(), coverage.uniform_variance(pool, positions), rtol=0.05)


@given(models, devices, batches, depths, contexts)
def test_a_price_never_falls_with_depth_batch_or_context(
    model: str, gpu: str, batch: int, depth: int, context: int
) -> None:
    setting = pricer(model, gpu)
    here = setting.verify(Step.uniform(batch=batch, depth=depth, context=context)).total_seconds
    for step in (
        Step.uniform(batch=batch, depth=depth + 1, context=context),
        Step.uniform(batch=batch + 1, depth=depth, context=context),
        Step.uniform(batch=batch, depth=depth, context=context + 512),
    ):
        assert setting.verify(step).total_seconds >= here * (1 - 1e-12)


@given(models, devices, batches, depths, contexts)
def test_the_ledger_adds_up(model: str, gpu: str, batch: int, depth: int, context: int) -> None:
    price = pricer(model, gpu).verify(Step.uniform(batch=batch, depth=depth, context=context))
    assert np.isclose(price.total_seconds, sum(float(line.seconds) for line in price.components))
    for line in price.components:
        assert line.seconds >= 0
        assert line.bytes >= 0
        assert line.flops >= 0


@given(models, batches, depths)
def test_whole_step_is_never_dearer_than_kernels_one_after_another(model: str, batch: int, depth: int) -> None:
    step = Step.uniform(batch=batch, depth=depth, context=512)
    apart = pricer(model, "b200")
    together = pricer(model, "b200", prices=Roofline(device=apart.scenario.device, form=RooflineForm.WHOLE_STEP))
    assert together.verify(step).total_seconds <= apart.verify(step).total_seconds * (1 + 1e-12)


@given(models, st.lists(st.tuples(depths, contexts), min_size=1, max_size=12))
def test_a_ragged_batch_is_priced_like_its_classes(model: str, sequences: list[tuple[int, int]]) -> None:
    """Equal sequences one by one, and the same ones as one class with a count, cost the same."""
    setting = pricer(model, "h100")
    depth, context = sequences[0]
    alike = Step.ragged(depths=[depth] * len(sequences), contexts=[context] * len(sequences))
    grouped = Step.uniform(batch=len(sequences), depth=depth, context=context)
    assert np.isclose(setting.verify(alike).total_seconds, setting.verify(grouped).total_seconds)
    mixed = Step.ragged(depths=[d for d, _ in sequences], contexts=[c for _, c in sequences])
    deepest, longest = max(d for d, _ in sequences), max(c for _, c in sequences)
    bound = Step.uniform(batch=len(sequences), depth=deepest, context=longest)
    assert setting.verify(mixed).total_seconds <= setting.verify(bound).total_seconds * (1 + 1e-12)


@given(models, batches, contexts)
def test_depth_zero_is_plain_decoding(model: str, batch: int, context: int) -> None:
    context = min(context, find_model(model).max_context or context)
    setting = pricer(model, "h200", "free", context=context, memory_utilization=1.0)
    grid = setting.grid([batch], 4)
    assert grid.goodput[0, 0] == grid.no_spec_goodput[0]
    assert grid.committed[0] == 1.0
    assert grid.draft_seconds[0, 0] == 0.0


@given(st.floats(0, 0.01), st.floats(0, 0.001), batches)
def test_off_differs_from_none_only_by_the_stated_engine_terms(step_s: float, seq_s: float, batch: int) -> None:
    time = EngineTime(off_step_seconds=step_s, off_sequence_seconds=seq_s, source=assumed("test"))
    grid = pricer(engine_time=time).grid([batch], 1)
    assert np.isclose(grid.round_seconds[0, 0] - grid.no_spec_seconds[0], step_s + seq_s * batch)


@given(batches, st.floats(0, 1))
def test_goodput_rises_with_acceptance(batch: int, alpha: float) -> None:
    low = pricer(acceptance=f"{alpha * 0.9}").grid([batch], 8).goodput
    high = pricer(acceptance=f"{alpha}").grid([batch], 8).goodput
    assert np.all(high >= low * (1 - 1e-12))


@given(st.floats(0.01, 0.999), st.integers(1, 16))
def test_break_even_inverts_the_committed_length(alpha: float, depth: int) -> None:
    committed = sum(alpha**d for d in range(depth + 1))
    assert np.isclose(break_even_acceptance(committed, depth), alpha, atol=1e-6)


@given(st.floats(1.0, 20.0), st.integers(1, 16))
def test_break_even_is_a_probability_or_never(ratio: float, depth: int) -> None:
    even = float(break_even_acceptance(ratio, depth))
    assert np.isnan(even) == (ratio > depth + 1)
    assert np.isnan(even) or 0.0 <= even <= 1.0


@given(batches, st.integers(1, 8))
def test_at_break_even_acceptance_the_depth_equals_no_speculation(batch: int, depth: int) -> None:
    setting = pricer(drafter="mtp")
    grid = setting.grid([batch], depth)
    even = float(break_even_acceptance(grid.round_seconds[0, depth] / grid.no_spec_seconds[0], depth))
    assume(0.0 < even < 1.0)
    again = pricer(drafter="mtp", acceptance=f"{even:.15f}").grid([batch], depth)
    assert np.isclose(again.goodput[0, depth], again.no_spec_goodput[0], rtol=1e-6)


@given(st.floats(0, 1), st.integers(1, 12))
def test_a_mean_length_comes_back(alpha: float, depth: int) -> None:
    length = float(np.sum(alpha ** np.arange(1, depth + 1)))
    for text in (f"accepted:{length}@{depth}", f"length:{1 + length}@{depth}"):
        assert np.isclose(parse_acceptance(text).accepted_by_depth(depth)[-1], length, atol=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 20))
def test_survival_goes_on_past_what_is_known(values: list[float], depth: int) -> None:
    curve = Survival(by_depth=np.sort(np.asarray(values))[::-1], source=assumed("test"))
    extended = curve.up_to(depth)
    assert extended.size == depth
    assert np.all(np.diff(extended) <= 1e-12)
    assert np.all((extended >= 0) & (extended <= 1))


@given(models, st.sampled_from([2, 4, 8]), st.sampled_from(list(Parallel)), st.integers(1, 64))
def test_more_gpus_never_make_the_kernels_slower(model: str, gpus: int, parallel: Parallel, batch: int) -> None:
    """Without collectives, a rank of many never has more to do than the only one."""
    layout = Layout(gpus=gpus, parallel=parallel)
    single = pricer(model, "h200")
    try:
        many = pricer(model, "h200", layout=layout)
    except ParallelismError:
        return
    step = Step.uniform(batch=batch, depth=2, context=1024)

    def kernels(setting: Pricer) -> float:
        lines = setting.verify(step).components
        return sum(float(line.seconds) for line in lines if line.component != "collectives")

    assert kernels(many) <= kernels(single) * (1 + 1e-9)


@given(
    st.sampled_from(["deepseek-v3", "qwen3.6-35b-a3b", "gpt-oss-120b", "deepseek-v4-flash"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(list(Parallel)),
    st.integers(1, 300),
    st.integers(0, 8),
)
def test_one_more_position_never_makes_a_step_cheaper(
    model: str, gpus: int, parallel: Parallel, batch: int, depth: int
) -> None:
    """On any layout: the hurdle of a draft token is never negative."""
    setting = pricer(model, "h200", layout=Layout(gpus=gpus, parallel=parallel))
    now, more = setting.marginal(Step.uniform(batch=batch, depth=depth, context=1024))
    for before, after in zip(now.components, more.components, strict=True):
        assert after.seconds >= before.seconds * (1 - 1e-12)


@given(st.sampled_from(list(Parallel)), st.integers(1, 64), st.integers(0, 6))
def test_equal_sequences_are_spread_like_one_class(parallel: Parallel, batch: int, depth: int) -> None:
    setting = pricer("deepseek-v3", "h200", layout=Layout(gpus=8, parallel=parallel))
    one_by_one = Step.ragged(depths=[depth] * batch, contexts=100)
    together = Step.uniform(batch=batch, depth=depth, context=100)
    assert np.isclose(setting.verify(one_by_one).total_seconds, setting.verify(together).total_seconds)
