"""Measured prices: which measurement is taken, what happens where there is none, and what the ledger says about it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmargin.catalog.lookup import find_device, find_model
from specmargin.catalog.prices import find_prices, law_book
from specmargin.decisions.warnings import price_warnings
from specmargin.errors import CatalogError, TableError
from specmargin.hardware.layout import Layout
from specmargin.modes import Parallel, RooflineForm
from specmargin.prices.kernels import store
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.model import SiliconPrices
from specmargin.prices.kernels.shelf import LawShelf
from specmargin.prices.kernels.tables import TableRefinement
from specmargin.prices.kernels.terms import gemm_terms
from specmargin.prices.model import PriceModel, StepPrice
from specmargin.prices.roofline import Roofline
from specmargin.prices.work import Component
from specmargin.sources import SourceKind
from specmargin.step import Step
from tests.scenarios import pricer

FORM = RooflineForm.PER_COMPONENT


def prices_of(spec: str | None, gpu: str = "h200", engine: str = "vllm") -> PriceModel:
    return find_prices(spec, find_device(gpu), engine, FORM)


def priced(prices: PriceModel, model: str = "qwen3-30b-a3b", gpu: str = "h200", **changes: Any) -> StepPrice:
    step = Step.uniform(batch=8, depth=3, context=1024.0)
    return pricer(model, gpu, prices=prices, **changes).verify(step)


def source_of(price: StepPrice, component: Component) -> str:
    return next(str(line.source) for line in price.components if line.component is component)


def seconds_of(price: StepPrice, component: Component) -> float:
    return next(float(line.seconds) for line in price.components if line.component is component)


def book_without(book: LawBook, *, engine: str = "", operation: str = "") -> LawBook:
    laws = {key: law for key, law in book.laws.items() if engine not in ("", key[0]) or operation not in ("", key[1])}
    kernels = {name: value for name, value in book.kernels.items() if not (engine and f"/{engine}/" in name)}
    return LawBook(gpu=book.gpu, release=book.release, laws=laws, curves=book.curves, kernels=kernels)


def silicon(book: LawBook, engine: str = "vllm") -> SiliconPrices:
    return SiliconPrices(name="laws", engine=engine, book=book, fallback=Roofline(device=find_device("h200")))


def h200_book() -> LawBook:
    book = law_book(find_device("h200"))
    assert book is not None
    return book


# --- the order in which prices are looked for ---


def test_the_default_is_the_best_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prices_of(None).name == "tables"
    monkeypatch.setattr(store, "available", lambda: False)
    assert prices_of(None).name == "laws"
    assert prices_of(None, gpu="mi300x").name == "scaled"  # there are no published kernel measurements of this one


def test_own_engine_then_another_then_the_datasheet() -> None:
    book = h200_book()
    own = source_of(priced(silicon(book)), Component.ROUTED_EXPERTS)
    other = source_of(priced(silicon(book_without(book, engine="vllm"))), Component.ROUTED_EXPERTS)
    none = source_of(priced(silicon(book_without(book, operation="experts"))), Component.ROUTED_EXPERTS)
    assert own.startswith("silicon: ")
    assert "law of vllm" in own
    assert other.startswith("silicon: ")
    assert "vllm" not in other
    assert none.startswith("datasheet: ")


def test_components_fall_back_one_by_one() -> None:
    whole, part = priced(silicon(h200_book())), priced(silicon(book_without(h200_book(), operation="experts")))
    sheet = priced(Roofline(device=find_device("h200")))
    assert seconds_of(part, Component.ROUTED_EXPERTS) == seconds_of(sheet, Component.ROUTED_EXPERTS)
    assert seconds_of(part, Component.LM_HEAD) == seconds_of(whole, Component.LM_HEAD)
    kinds = {line.source.kind for line in part.components}
    assert {SourceKind.SILICON, SourceKind.DATASHEET} <= kinds


def test_llamacpp_was_never_measured_so_the_label_names_the_engine_that_was() -> None:
    assert "law of vllm" in source_of(priced(prices_of("laws", engine="llamacpp")), Component.ROUTED_EXPERTS)


# --- labels ---


def test_verify_attention_says_that_it_is_modelled() -> None:
    assert "several queries per sequence are modelled" in source_of(priced(prices_of("laws")), Component.ATTENTION)


def test_a_measured_shape_comes_from_the_table_and_says_so() -> None:
    by_tables = priced(prices_of("tables"))
    assert "table of vllm" in source_of(by_tables, Component.ROUTED_EXPERTS)
    assert "law of vllm" in source_of(priced(prices_of("laws")), Component.ROUTED_EXPERTS)


def test_all_to_all_is_measured_at_the_sizes_that_were() -> None:
    measured = Layout(gpus=8, attention_copies=8, expert_split=1)
    other = Layout(gpus=4, attention_copies=4, expert_split=1)
    step = Step.uniform(batch=64, depth=1, context=1024.0)
    for layout, kind in ((measured, "silicon"), (other, "scaled")):
        spread = pricer("deepseek-v3", "h200", prices=prices_of("laws"), layout=layout)
        assert source_of(spread.verify(step), Component.COLLECTIVES).startswith(kind)


# --- tables ---


def test_tables_give_back_what_was_measured() -> None:
    """At a shape and size in the table, one expert block takes its time: Qwen3-30B-A3B's on an H200, vLLM 0.24.0."""
    table = store.load("h200_sxm", "moe", "vllm", "moe_perf")
    assert table is not None
    import polars as pl  # noqa: PLC0415

    rows = table.rows.filter(
        (pl.col("hidden_size") == 2048) & (pl.col("inter_size") == 768) & (pl.col("topk") == 8)
    ).filter(
        (pl.col("num_experts") == 128)
        & (pl.col("moe_tp_size") == 1)
        & (pl.col("moe_ep_size") == 1)
        & (pl.col("moe_dtype") == "bfloat16")
        & (pl.col("distribution") == "balanced")
    )
    model = find_model("qwen3-30b-a3b")
    for tokens in (1, 8, 64):
        measured = rows.filter(pl.col("num_tokens") == tokens)["seconds"].min()
        assert measured is not None
        step = Step.uniform(batch=tokens, depth=0, context=64.0)
        line = seconds_of(pricer("qwen3-30b-a3b", prices=prices_of("tables")).verify(step), Component.ROUTED_EXPERTS)
        # Uniform routing touches fewer experts than the table's balanced one, never more.
        assert 0.75 * model.layers * float(measured) < line <= 1.02 * model.layers * float(measured)  # type: ignore[arg-type]


def test_a_shape_that_nobody_measured_follows_the_law_and_says_so() -> None:
    refinement = TableRefinement(system="h200_sxm", device=find_device("h200"))
    prices = SiliconPrices(
        name="tables",
        engine="vllm",
        book=h200_book(),
        fallback=Roofline(device=find_device("h200")),
        refinement=refinement,
    )
    unmeasured = find_model("qwen3-30b-a3b")
    from dataclasses import replace  # noqa: PLC0415

    def narrow(layer: Any) -> Any:
        block = layer.experts
        expert = tuple(replace(m, inputs=m.inputs * 7, outputs=m.outputs * 5) for m in block.expert)
        return replace(layer, experts=replace(block, expert=expert))

    groups = tuple(replace(group, layer=narrow(group.layer)) for group in unmeasured.groups)
    odd = replace(unmeasured, groups=groups)
    step = Step.uniform(batch=8, depth=0, context=64.0)
    label = source_of(pricer("qwen3-30b-a3b", prices=prices, architecture=odd).verify(step), Component.ROUTED_EXPERTS)
    assert "law" in label
    assert "table of vllm (" not in label


@pytest.fixture
def copied_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one GPU's expert tables that a test may spoil."""
    source = store.data_folder() / "h200_sxm"
    for operation in ("moe", "gemm", "attention"):
        for path in (source / operation / "vllm").glob("*/*.parquet"):
            target = tmp_path / path.relative_to(store.data_folder())
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    monkeypatch.setattr(store, "data_folder", lambda: tmp_path)
    return tmp_path


def _fresh_tables() -> SiliconPrices:
    device = find_device("h200")
    refinement = TableRefinement(system="h200_sxm", device=device)
    return SiliconPrices(
        name="tables", engine="vllm", book=h200_book(), fallback=Roofline(device=device), refinement=refinement
    )


def test_a_table_with_missing_shapes_falls_back_to_the_law(copied_tables: Path) -> None:
    import polars as pl  # noqa: PLC0415

    for path in copied_tables.glob("h200_sxm/moe/vllm/*/moe_perf.parquet"):
        pl.read_parquet(path).filter(pl.col("hidden_size") > 6000).write_parquet(path)
    label = source_of(priced(_fresh_tables()), Component.ROUTED_EXPERTS)
    assert "law" in label
    assert np.isfinite(priced(_fresh_tables()).total_seconds)


def test_no_gemm_is_faster_per_position_than_the_largest_of_its_table() -> None:
    """8192 × 8192 in bf16 on an H200: 661 TFLOP/s at 32,768 positions, 830 at 768 (vLLM 0.24, aiconfigurator-core)."""
    prices = _fresh_tables()
    assert prices.refinement is not None
    entry = h200_book().gemm("vllm", "bf16")
    assert entry is not None
    m = np.array([16.0, 64.0, 256.0, 768.0, 1792.0, 4096.0, 32768.0])
    correction = prices.refinement.gemm(entry, m, 8192, 8192)
    seconds = entry.law.seconds(gemm_terms(m, 8192, 8192, entry.dtype)) * correction.factor
    rate = 2.0 * m * 8192 * 8192 / seconds
    assert rate[-1] == pytest.approx(661e12, rel=0.01)
    assert rate.max() == pytest.approx(rate[-1])
    assert rate[3] == pytest.approx(rate[-1])  # limited here
    assert rate[1] == pytest.approx(232e12, rel=0.05)  # memory limits it: as measured


def test_a_missing_table_falls_back_to_the_law(copied_tables: Path) -> None:
    shutil.rmtree(copied_tables / "h200_sxm" / "moe")
    assert "law of vllm" in source_of(priced(_fresh_tables()), Component.ROUTED_EXPERTS)


def test_a_corrupted_table_is_named(copied_tables: Path) -> None:
    for path in copied_tables.glob("h200_sxm/moe/vllm/*/moe_perf.parquet"):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TableError, match=r"moe_perf\.parquet: not a readable Parquet file.*reinstall"):
        priced(_fresh_tables())


def test_a_table_without_its_column_is_named(copied_tables: Path) -> None:
    import polars as pl  # noqa: PLC0415

    for path in copied_tables.glob("h200_sxm/gemm/vllm/*/gemm_perf.parquet"):
        pl.read_parquet(path).drop("latency").write_parquet(path)
    with pytest.raises(TableError, match="has no 'latency' column"):
        priced(_fresh_tables())


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find_spec", lambda _: None)
    with pytest.raises(TableError, match=r"pip install 'specmargin\[tables\]'"):
        prices_of("tables")


# --- a file of one's own ---


OWN_LAW = {
    "gpu": "h200",
    "engine": "vllm",
    "operation": "gemm",
    "dtype": "bfloat16",
    "variant": "",
    "fixed_seconds": 1.0,
    "bytes_per_second": 1e12,
    "operations_per_second": 1e15,
    "evidence": {"version": "mine 1", "rows": 9, "shapes": 3, "median_error": 0.1, "p90_error": 0.2},
}


def _changed(**changes: Any) -> dict[str, Any]:
    return {"laws": [OWN_LAW | changes]}


def _own_laws(tmp_path: Path, **changes: Any) -> Path:
    values = {"schema": "specmargin.laws/1", "source": "my machine", "kernels": {}, "laws": [OWN_LAW]}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(values | changes))
    return path


def test_a_file_of_laws_comes_first_and_the_bundled_ones_fill_in(tmp_path: Path) -> None:
    mine = priced(prices_of(str(_own_laws(tmp_path))))
    bundled = priced(prices_of("laws"))
    assert seconds_of(mine, Component.LM_HEAD) > 1.0
    assert "my machine, h200, law of mine 1" in source_of(mine, Component.LM_HEAD)
    assert "my machine" not in source_of(mine, Component.ROUTED_EXPERTS)
    assert seconds_of(mine, Component.ROUTED_EXPERTS) == seconds_of(bundled, Component.ROUTED_EXPERTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "something/2"}, "'schema' must be 'specmargin.laws/1'"),
        ({"laws": [{"gpu": "h200"}]}, "a law lacks the field 'engine'"),
        ({"laws": []}, "'laws' has none for h200"),
        ({"laws": 3}, "'laws' must be a list"),
        ({"kernels": []}, "'kernels' must be an object"),
        ({"laws": ["text"]}, "every entry of 'laws' must be an object"),
        (_changed(bytes_per_second=0), "bytes_per_second must be a positive number, got 0"),
        (_changed(fixed_seconds=-1e-6), "fixed_seconds must be a non-negative number"),
        (_changed(fixed_seconds=float("nan")), "fixed_seconds must be a non-negative number"),
        (_changed(fixed_seconds="fast"), "a law is not understood"),
    ],
)
def test_a_wrong_file_of_laws_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        prices_of(str(_own_laws(tmp_path, **changes)))


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text("{")
    with pytest.raises(CatalogError, match=r"own\.json: not valid JSON"):
        prices_of(str(path))
    with pytest.raises(CatalogError, match=r"none\.json: cannot be read"):
        prices_of(str(tmp_path / "none.json"))


def test_wrong_names_are_refused() -> None:
    with pytest.raises(CatalogError, match="nearest: tables"):
        prices_of("table")
    with pytest.raises(CatalogError, match="no measured laws for mi300x"):
        prices_of("laws", gpu="mi300x")
    with pytest.raises(CatalogError, match="needs --prices datasheet"):
        find_prices("laws", find_device("h200"), "vllm", RooflineForm.WHOLE_STEP)


# --- bad kernels ---


def test_a_kernel_far_under_the_bandwidth_is_warned_about_with_what_is_faster() -> None:
    """The experts' law of the engine at a fifth of its bandwidth."""
    prices = prices_of("laws")
    assert isinstance(prices, SiliconPrices)
    laws = {
        key: replace(law, bytes_per_second=law.bytes_per_second / 5.0) if key[:3] == ("vllm", "experts", "fp8") else law
        for key, law in prices.book.laws.items()
    }
    assert isinstance(prices.book, LawShelf)
    slow = replace(prices, book=replace(prices.book, own=replace(prices.book.own, laws=laws)))
    architecture = find_model("qwen3-30b-a3b", weights=_precision("fp8"))
    bad = pricer("qwen3-30b-a3b", prices=slow, architecture=architecture)
    good = pricer("qwen3-30b-a3b", prices=prices, architecture=architecture)
    (warning,) = price_warnings(bad, batch=8, depth=1)
    assert "of the device's bandwidth" in warning
    assert "would take" in warning
    assert price_warnings(good, batch=8, depth=1) == ()


def _precision(name: str) -> Any:
    from specmargin.architecture.precision import PRECISIONS  # noqa: PLC0415

    return PRECISIONS[name]


@pytest.mark.parametrize("parallel", list(Parallel))
@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "deepseek-v3", "deepseek-v4-flash", "gpt-oss-120b", "kimi-k2"])
@pytest.mark.parametrize("spec", ["laws", "tables"])
def test_measured_prices_never_fall_with_depth_or_batch(model: str, parallel: Parallel, spec: str) -> None:
    """Tables may dip by a percent between two measured sizes, where their correction is interpolated."""
    batch = np.array([1, 2, 4, 8, 16, 32, 64, 128])[:, np.newaxis]
    step = Step.uniform(batch=batch, depth=np.arange(9), context=2048.0)
    spread = pricer(model, "b200", prices=prices_of(spec, gpu="b200"), layout=Layout(gpus=8, parallel=parallel))
    seconds = spread.verify(step).total_seconds
    slack = 1e-9 if spec == "laws" else 0.01 * seconds[:-1].max()
    assert (np.diff(seconds, axis=0) >= -slack).all()
    assert (np.diff(seconds, axis=1) >= -slack).all()


def test_prices_do_not_depend_on_what_was_priced_before() -> None:
    """Corrections are relative to a law: they must not be cached across laws."""
    step = Step.uniform(batch=8, depth=1, context=2048.0)

    def seconds(order: list[str]) -> dict[str, float]:
        prices = _fresh_tables()
        return {m: float(pricer(m, prices=prices).verify(step).total_seconds) for m in order}

    models = ["qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"]
    assert seconds(models) == seconds(models[::-1])
