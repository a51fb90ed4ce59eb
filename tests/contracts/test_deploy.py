"""Containers: files are linted, images pinned, and ports, paths and settings agree with the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from specmargin.live.settings_schema import Mode, read_settings
from specmargin.verbs.explore import ExploreRequest
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILES = {path.name: path.read_text() for path in sorted(DEPLOY.glob("*.Dockerfile"))}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def _complaints(program: str, *arguments: str) -> str:
    tool = Path(sys.executable).parent / program
    if not tool.exists() and not os.environ.get("CI"):
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"{program} fails"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_are_linted(name: str) -> None:
    assert _complaints("hadolint", str(DEPLOY / name)) == ""


def test_the_composition_is_valid() -> None:
    file = str(DEPLOY / "compose.yaml")
    assert _complaints("check-jsonschema", "--builtin-schema", "vendor.compose-spec", file) == ""


def test_images_are_pinned() -> None:
    texts = "\n".join(DOCKERFILES.values())
    named = re.findall(r"(?:^FROM |IMAGE=)([\w./-]+:\S+)", texts, re.MULTILINE)
    named += [service["image"] for service in SERVICES.values() if "image" in service]
    named += [SERVICES["vllm"]["build"]["args"]["IMAGE"]]
    assert len(named) > 5
    assert [image for image in named if not re.search(r":v?\d+\.\d+\.\d+", image)] == []


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [name for text in DOCKERFILES.values() for name in re.findall(r"pip install .*\[(\w+)\]", text)]
    assert len(named) == len(DOCKERFILES)
    assert set(named) <= set(extras)


def test_the_page_listens_where_the_image_says() -> None:
    text, port = DOCKERFILES["explorer.Dockerfile"], ExploreRequest().port
    assert f"EXPOSE {port}\n" in text
    assert f"'127.0.0.1', {port}" in text
    assert re.search(r"^USER \d+$", text, re.MULTILINE)


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), source
    build = SERVICES["vllm"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_plug_in_is_configured() -> None:
    options = dict(word.removeprefix("--").split("=", 1) for word in SERVICES["vllm"]["command"][1:])
    settings = read_settings(json.loads(options["additional-config"])["specmargin"], "compose.yaml")
    assert settings.mode is Mode.SCHEDULE
    assert settings.schedule is not None
    deepest = json.loads(options["speculative-config"])["num_speculative_tokens"]
    assert max(depth for _, _, depth in settings.schedule) == deepest


def test_metrics_reach_the_dashboard() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    ((target,),) = [config["targets"] for config in prometheus["scrape_configs"][0]["static_configs"]]
    service, _, port = target.partition(":")
    assert SERVICES[service]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yml").read_text())["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in SERVICES
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"] if "grafana.json" in volume]
    assert [str(Path(path).parent) for path in mounted] == [provider["options"]["path"]]
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
