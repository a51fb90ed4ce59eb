"""Adds the boards to an engine's `/metrics`. They are read only when metrics are requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from specmargin.live.board import METRICS, boards
from specmargin.live.hooks import around

_PREFIX = "specmargin"


class BoardCollector(Collector):
    """One per process and registry, for the boards of the last server configured in the process."""

    _collectors: ClassVar[dict[CollectorRegistry, BoardCollector]] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def show(cls, folder: Path, registry: CollectorRegistry) -> None:
        collector = cls._collectors.get(registry)
        if collector is not None:
            collector.folder = folder
            return
        cls._collectors[registry] = collector = cls(folder)
        registry.register(collector)

    def collect(self) -> Iterable[Metric]:
        readings = list(boards(self.folder))
        for metric in METRICS:
            make = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            name = f"{_PREFIX}_{metric.name.removesuffix('_total')}"
            family = make(name, metric.help, labels=["engine"])
            for engine, reading in readings:
                if metric.name in reading.values:
                    family.add_metric([engine], reading.values[metric.name])
            yield family
        depths = CounterMetricFamily(
            f"{_PREFIX}_depth_chosen", "Steps by chosen draft depth", labels=["engine", "depth"]
        )
        faults = CounterMetricFamily(f"{_PREFIX}_faults", "Faults of Specmargin by kind", labels=["engine", "kind"])
        for engine, reading in readings:
            for depth, steps in reading.steps_by_depth.items():
                depths.add_metric([engine, str(depth)], steps)
            for kind, count in reading.faults.items():
                faults.add_metric([engine, kind], count)
        yield depths
        yield faults

    def describe(self) -> Iterable[Metric]:
        return ()


def show_with_multiprocess(folder: Path) -> None:
    """Add the boards where metrics are collected from the files of several processes."""

    @around(MultiProcessCollector, "collect")
    def collect(own: Callable[[MultiProcessCollector], list[Metric]], collector: MultiProcessCollector) -> list[Metric]:
        return [*own(collector), *BoardCollector(folder).collect()]
