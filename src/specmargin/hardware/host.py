"""The host of an engine: what its steps wait for on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specmargin.sources import Source, SourceKind

_STATED_SPREAD = 0.2  # of a launch time from steps without graphs: kernels of a layer are counted, not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Times of one kind of host. Figures of its memory and links belong here, once something is priced by them."""

    name: str
    sync_step_seconds: float
    sync_sequence_seconds: float
    waiting_step_seconds: float
    wait_spread: float
    kernel_launch_seconds: float
    source: Source  # of the waits
    launch_source: Source

    def launching_in(self, seconds: float) -> Host:
        """A host whose launches were timed: a slow host is slow at all of it, so that steps wait in proportion."""
        ratio = seconds / self.kernel_launch_seconds
        detail = f"{self.source.detail}; in proportion to the stated {seconds * 1e6:g} µs per launch"
        return replace(
            self,
            sync_step_seconds=self.sync_step_seconds * ratio,
            sync_sequence_seconds=self.sync_sequence_seconds * ratio,
            waiting_step_seconds=self.waiting_step_seconds * ratio,
            kernel_launch_seconds=seconds,
            source=replace(self.source, detail=detail),
            launch_source=Source(
                kind=SourceKind.ASSUMED, detail=f"{seconds * 1e6:g} µs per launch, as stated", spread=_STATED_SPREAD
            ),
        )


def host_of(name: str, table: Mapping[str, Any]) -> Host:
    """From a table that is known to be valid."""
    return Host(
        name=name,
        sync_step_seconds=table["sync_step_seconds"],
        sync_sequence_seconds=table["sync_sequence_seconds"],
        waiting_step_seconds=table["waiting_step_seconds"],
        wait_spread=table["wait_spread"],
        kernel_launch_seconds=table["kernel_launch_seconds"],
        source=Source(kind=SourceKind.PUBLISHED, detail=table["source"], spread=table["wait_spread"]),
        launch_source=Source(
            kind=SourceKind.ASSUMED, detail=table["kernel_launch_source"], spread=table["kernel_launch_spread"]
        ),
    )
