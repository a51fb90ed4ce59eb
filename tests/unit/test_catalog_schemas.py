"""Schemas of catalog entries: published as they are, kept by every bundled entry, and refusing by the field's name."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # a dependency of schemathesis

from specmargin.catalog.entries import bundled_entries, template
from specmargin.catalog.entry_schema import SCHEMAS, json_schema
from specmargin.catalog.user import FOLDERS, checked_entry
from specmargin.errors import CatalogError
from tests.conftest import ROOT

files = runpy.run_path(str(ROOT / "scripts" / "update_schemas.py"))["files"]
ENTRIES = [(kind, name) for kind in FOLDERS for name in bundled_entries(kind)]


def test_every_kind_has_a_folder_and_a_schema() -> None:
    assert set(SCHEMAS) == set(FOLDERS)
    assert len({kind for kind, _ in ENTRIES}) == len(FOLDERS)


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_published_schemas_are_current(kind: str) -> None:
    """`make schemas` writes them."""
    path, text = next((path, text) for path, text in files().items() if path.name == f"{kind}.schema.json")
    assert path.read_text(encoding="utf-8") == text
    Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_field_is_described(kind: str) -> None:
    assert all(field.get("description") for field in json_schema(kind)["properties"].values())


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_bundled_entry_keeps_its_schema(kind: str) -> None:
    """By the published JSON Schema, and by Pydantic, which also checks what a schema cannot state."""
    validator = Draft202012Validator(json_schema(kind))
    for name, entry in bundled_entries(kind).items():
        assert [error.message for error in validator.iter_errors(json.loads(json.dumps(entry)))] == [], name
        checked_entry(kind, entry, name)


@pytest.mark.parametrize("kind", FOLDERS)
def test_wrong_fields_are_refused_by_name(kind: str) -> None:
    entry = next(iter(bundled_entries(kind).values()))
    validator = Draft202012Validator(json_schema(kind))
    required = json_schema(kind)["required"]
    for field in required:
        wrong = {key: value for key, value in entry.items() if key != field}
        with pytest.raises(CatalogError, match=rf"mine\.toml: {field} is missing"):
            checked_entry(kind, wrong, "mine.toml")
        assert not validator.is_valid(wrong)
    for field in entry:
        with pytest.raises(CatalogError, match=rf"mine\.toml: {field}\b"):
            checked_entry(kind, entry | {field: [{"": []}]}, "mine.toml")
    with pytest.raises(CatalogError, match=f"mine.toml: colour is not a known field.*models --template {kind}"):
        checked_entry(kind, entry | {"colour": 1}, "mine.toml")
    assert not validator.is_valid(entry | {"colour": 1})


EAGLE = bundled_entries("drafter")["eagle:qwen3-30b-a3b"]
HOST_MEMORY = bundled_entries("fabric")["pcie-host-memory"]
SPARKS = bundled_entries("fabric")["roce-gb10"]


@pytest.mark.parametrize(
    ("kind", "entry", "complaint"),
    [
        ("drafter", EAGLE | {"drafter": "dflash"}, "num_hidden_layers is missing: a head of the kind dflash needs it"),
        ("drafter", EAGLE | {"survival": [0.8]}, "survival and survival_source are given together"),
        ("drafter", EAGLE | {"survival": [0.5, 0.6], "survival_source": "me"}, "survival must not rise with depth"),
        ("drafter", EAGLE | {"survival": [1.2], "survival_source": "me"}, "survival.0 must be at most 1, got 1.2"),
        ("fabric", HOST_MEMORY | {"gpus": None}, "give all_reduce_seconds, or seconds_per_gpu"),
        ("fabric", HOST_MEMORY | SPARKS, "not both"),
        ("fabric", SPARKS | {"all_reduce_seconds": {"2": [[2, 1e-6], [1, 1e-6]]}}, "all_reduce_seconds.2: give two"),
        ("fabric", SPARKS | {"all_reduce_seconds": {"two": [[1, 1e-6], [2, 1e-6]]}}, "all_reduce_seconds.two"),
        ("engine-time", bundled_entries("engine-time")["vllm:laws"] | {"step_seconds": 183}, "step_seconds must be at"),
        ("gpu", bundled_entries("gpu")["h200"] | {"memory_bytes": 141}, "memory_bytes is 141, .*probably 141e9"),
    ],
)
def test_what_a_json_schema_cannot_state(kind: str, entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CatalogError, match=complaint):
        checked_entry(kind, entry, "mine.toml")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in ENTRIES if kind != "gpu"])
def test_a_template_is_the_entry_that_it_starts_from(kind: str, name: str) -> None:
    text = template(kind, name)
    values = json.loads(text) if kind == "model" else tomllib.loads(text)
    assert values.keys() == bundled_entries(kind)[name].keys()
    assert checked_entry(kind, values, name) == checked_entry(kind, bundled_entries(kind)[name], name)


def test_templates_without_a_name_are_examples() -> None:
    for kind in set(FOLDERS) - {"model"}:
        assert re.match(rf"# Your own {kind}, with the figures of ", template(kind), re.IGNORECASE)
    with pytest.raises(CatalogError, match=r"no bundled drafter 'eagle:qwen3-30b'; nearest: .*eagle:qwen3-30b-a3b"):
        template("drafter", "eagle:qwen3-30b")
