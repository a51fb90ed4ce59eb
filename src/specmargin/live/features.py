"""Settings with the features that this release of an engine has."""

from __future__ import annotations

from specmargin.live.parts import Feature, Report
from specmargin.live.settings_schema import GateKind, GateSettings, Mode, Settings


def remaining_settings(settings: Settings, report: Report) -> Settings:
    """What the engine runs with. Without depth control it only counts: nothing asks the policy for a depth."""
    changes: dict[str, object] = {}
    if not report.has(Feature.GATE):
        changes["gate"] = GateSettings(kind=GateKind.OFF)
    if not report.has(Feature.DEPTH):
        changes |= {"mode": Mode.OBSERVE, "policy": None, "schedule": None, "classes": {}, "candidates": None}
    return settings.model_copy(update=changes)


def table_settings(settings: Settings, report: Report) -> Settings:
    """By which the engine's own table of depths is made: where the engine follows it by itself, of the plan's schedule
    alone. Mode observe: no table."""
    if report.has(Feature.DEPTH) or settings.mode is Mode.OBSERVE:
        return settings
    mode = Mode.SCHEDULE if report.has(Feature.SCHEDULE) else Mode.OBSERVE
    return settings.model_copy(update={"mode": mode})
