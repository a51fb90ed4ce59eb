"""The attention modules of bundled models that were measured as a whole."""

from __future__ import annotations

from functools import cache

from specmargin.catalog.lookup import bundled_model
from specmargin.prices.kernels.kinds import MODULES, ModuleTable, attention_kind
from specmargin.prices.kernels.modules import MeasuredModule
from specmargin.prices.work import Module


def measured_modules() -> tuple[MeasuredModule, ...]:
    """The first of each kind is the one that its law is fitted to."""
    return tuple(measured for kind in dict.fromkeys(table.kind for table in MODULES) for measured in modules_of(kind))


@cache
def modules_of(kind: str) -> tuple[MeasuredModule, ...]:
    """Those of one kind of attention: a plan of a model without it reads no other model's configuration."""
    return tuple(MeasuredModule(table=table, module=_module(table)) for table in MODULES if table.kind == kind)


def _module(table: ModuleTable) -> Module:
    """Of several layers of its kind, the one with the most matrices.

    DeepSeek V4's first layers attend to a window alone: they are of HCA's kind, but have no compressor.
    """
    layers = [group.layer for group in bundled_model(table.model).groups]
    modules = [module for layer in layers if (module := Module.of(layer)) is not None]
    return max((m for m in modules if attention_kind(m.attention) == table.kind), key=lambda m: len(m.projections))
