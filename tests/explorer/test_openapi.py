"""Schemathesis against the running server: whatever is sent, the answer is as the schema says, and never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = {
    "/api/catalog": 15,
    "/api/plan": 15,
    "/api/view": 15,
    "/api/price": 15,
    "/api/coverage": 15,
    "/api/duel": 15,
    "/api/alternatives/{field}": 8,
    "/api/fixes": 8,
    "/api/resolve": 8,
    "/api/story": 15,
    "/api/figures/{name}.{ending}": 15,
    "/api/report/progress": 15,
    "/api/report": 2,  # two dozen drawings take ten seconds; a query's fields are tried above
    "/api/uploads/{kind}": 15,
}


@pytest.fixture(scope="module")
def operations(server: str) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(f"{server}/api/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    return {operation.path: operation for operation in operations}


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_api_keeps_its_schema(operations: dict[str, Any], path: str) -> None:
    # A schema cannot say which models fit on which GPUs, or what is in a file: a refusal of valid words is no fault.
    @given(case=operations[path].as_strategy())
    @settings(max_examples=EXAMPLES[path], suppress_health_check=list(HealthCheck), deadline=None)
    def check(case: Any) -> None:
        case.call_and_validate(timeout=300, excluded_checks=[schemathesis.checks.positive_data_acceptance])

    check()


def test_nothing_is_left_out_unsaid(operations: dict[str, Any]) -> None:
    assert set(operations) == set(EXAMPLES)
