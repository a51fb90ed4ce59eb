"""The attention modules of bundled models that were measured as a whole."""

from __future__ import annotations

from functools import cache
from itertools import chain

from specmargin.catalog.lookup import bundled_device, bundled_model
from specmargin.prices.kernels import store
from specmargin.prices.kernels.bounds import ModuleTimes, signature
from specmargin.prices.kernels.kinds import MODULES, ModuleTable, attention_kind
from specmargin.prices.kernels.modules import MeasuredModule, delta_net_shapes, measured_shapes
from specmargin.prices.work import Module


@cache
def measured_modules() -> tuple[MeasuredModule, ...]:
    """The first of each kind is the one that its law is fitted to."""
    return tuple(MeasuredModule(table=table, module=_module(table)) for table in MODULES)


def _module(table: ModuleTable) -> Module:
    """Of several layers of its kind, the one with the most matrices.

    DeepSeek V4's first layers attend to a window alone: they are of HCA's kind, but have no compressor.
    """
    layers = [group.layer for group in bundled_model(table.model).groups]
    modules = [module for layer in layers if (module := Module.of(layer)) is not None]
    return max((m for m in modules if attention_kind(m.attention) == table.kind), key=lambda m: len(m.projections))


def measured_times(gpu: str) -> dict[tuple[str, str], ModuleTimes]:
    """Of the tables, by engine and signature; of several models with the same module, the first."""
    system, bandwidth = store.SYSTEMS[gpu], bundled_device(gpu).bandwidth_bytes_per_second
    times: dict[tuple[str, str], ModuleTimes] = {}
    for engine in store.ENGINES:
        modules = (measured_shapes(system, engine, measured) for measured in measured_modules())
        for shape, rows in chain(*modules, delta_net_shapes(system, engine, bandwidth=bandwidth)):
            times.setdefault((engine, signature(shape)), rows.times())
    return times
