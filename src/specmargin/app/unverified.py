"""Unverified decoding, the labelled upper bound, as JSON: in the answers of `plan`, `price` and `duel`."""

from __future__ import annotations

from typing import Any

from specmargin.decisions.unverified import LABEL, Unverified, UnverifiedRound


def round_json(bound: UnverifiedRound) -> dict[str, Any]:
    return {
        "label": LABEL,
        "depth": bound.depth,
        "drafted": bound.drafted,
        "speedup": bound.speedup,
        "round_seconds": bound.unverified_seconds,
        "verification_seconds": bound.verification_seconds,
        "verification_share": bound.verification_share,
    }


def unverified_json(unverified: Unverified) -> dict[str, Any]:
    return {
        "label": LABEL,
        "rows": [
            {
                "batch": row.batch,
                "planned_depth": row.planned_depth,
                "planned_speedup": row.planned_speedup,
                "free_verification_speedup": row.free_speedup,
            }
            | {name: value for name, value in round_json(row.bound).items() if name != "label"}
            for row in unverified.rows
        ],
    }
