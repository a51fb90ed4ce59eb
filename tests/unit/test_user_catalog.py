"""The user's own catalog: entries by name, their precedence, broken files, and `models --check`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specmargin.answers.request_schema import _devices, _drafters, _models
from specmargin.catalog.drafters import find_acceptance, find_drafter
from specmargin.catalog.engine_times import engine_time_names, find_engine_time
from specmargin.catalog.entries import bundled_entries, template
from specmargin.catalog.lookup import bundled_device, bundled_model, find_device, find_model
from specmargin.catalog.machines import find_host, find_links
from specmargin.catalog.prices import find_prices
from specmargin.catalog.user import FOLDERS, catalog_folders, user_files
from specmargin.errors import CatalogError, HardwareError
from specmargin.modes import RooflineForm
from specmargin.show.explorer.choices import catalog
from specmargin.show.explorer.schema import ScenarioQuery
from tests.command_line import payload, run

MOE = bundled_entries("model")["qwen3-30b-a3b"] | {"hub_id": "me/My-MoE", "source": "my own configuration"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's configuration, with an entry of every kind."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "specmargin"
    _write(folder / "models/my-moe.json", MOE)
    _write(folder / "gpus/my-gpu.toml", template("gpu", "h20"))
    _write(folder / "drafters/my-head.toml", _drafter("my-moe"))
    _write(folder / "engine-times/my-engine.toml", _engine_time())
    _write(folder / "fabrics/my-links.toml", template("fabric").replace("NCCL over RoCE", "my switch"))
    return folder


def _write(path: Path, content: str | dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _bare(text: str) -> str:
    """Without white space: where a line is wrapped depends on the length of a path."""
    return "".join(text.split())


def _drafter(target: str) -> str:
    own = 'survival = [0.9, 0.7]\nsurvival_source = "my traffic"\ncheckpoint = "me/head"\n'
    return own + template("drafter").replace('target = "qwen3-30b-a3b"', f'target = "{target}"')


def _engine_time(step: str = "1e-3") -> str:
    return f'engine = "vllm"\nstep_seconds = {step}\nkind = "measured"\nsource = "my server"\n'


# --- found by name ---


def test_entries_are_found_by_name_and_marked_as_the_users(home: Path) -> None:
    model, device = find_model("My-MoE"), find_device("MY_GPU")
    assert model.groups == bundled_model("qwen3-30b-a3b").groups
    assert (model.name, str(model.source)) == (
        "my-moe",
        f"published: my own configuration (yours: {home}/models/my-moe.json)",
    )
    assert find_model("me/my-moe") == model
    assert str(device.source).endswith(f"(yours: {home}/gpus/my-gpu.toml)")
    assert replace(device, name="h20", source=bundled_device("h20").source) == bundled_device("h20")
    choice = find_drafter("my-head", model)
    assert (choice.kind, choice.model, choice.drafter.name) == ("eagle", "me/head", "my-head")
    survival = find_acceptance(None, choice, model)
    assert survival.by_depth.tolist() == [0.9, 0.7]
    assert str(survival.source) == f"published: my traffic (yours: {home}/drafters/my-head.toml)"
    time = find_engine_time("my-engine", engine="vllm", prices="laws")
    assert (time.step_seconds, time.source.detail) == (1e-3, "my server")


def test_every_list_has_them(home: Path) -> None:
    assert "my-moe" in _models()
    assert "my-gpu" in _devices()
    assert "my-head" in _drafters()
    assert "my-engine" in engine_time_names()
    assert "yours: my-moe" in run("models", "my-").out
    assert "yours: my-gpu" in run("gpus", "my-").out
    page = catalog.__wrapped__()  # type: ignore[attr-defined]  # not the one that another test made
    assert "my-moe" in [model["name"] for model in page["models"]]
    assert "my-gpu" in [gpu["name"] for gpu in page["gpus"]]
    assert "my-head" in page["drafters"]
    query = ScenarioQuery(model="my-moe", gpu="my-gpu", drafter="my-head", engine_time="my-engine")
    assert (query.model, query.gpu) == ("my-moe", "my-gpu")


def test_a_plan_with_nothing_but_own_entries(home: Path) -> None:
    asked = ("my-moe", "--gpu", "my-gpu", "--engine-time", "my-engine")
    shown = run("plan", *asked, "--drafter", "my-head").out
    assert '"model": "me/head"' in shown
    for line in (
        f"model: yours, {home}/models/my-moe.json",
        f"drafter, acceptance: yours, {home}/drafters/my-head.toml",
    ):
        assert _bare(line) in _bare(shown)
    assert "my-head" in run("plan", *asked, "--drafter", "all").out
    values = payload("plan", *asked, "--drafter", "my-head")
    assert values["sources"]["model"].endswith(f"(yours: {home}/models/my-moe.json)")
    assert values["warnings"] == ["acceptance beyond depth 2 is extrapolated; drafts go to 6"]


def test_a_head_is_of_one_model(home: Path) -> None:
    with pytest.raises(
        CatalogError, match=r"my-head is a head of my-moe, not of qwen3-8b; correct 'target' in .*head\.toml"
    ):
        find_drafter("my-head", bundled_model("qwen3-8b"))
    with pytest.raises(CatalogError, match="unknown drafter 'my-hed'; nearest: my-head"):
        find_drafter("my-hed", find_model("my-moe"))


def test_an_engine_time_is_of_one_engine_and_its_prices(home: Path) -> None:
    with pytest.raises(CatalogError, match=r"my-engine is of vllm .*; add --engine vllm"):
        find_engine_time("my-engine", engine="sglang", prices="laws")
    _write(home / "engine-times/beside-laws.toml", 'prices = "laws"\n' + _engine_time())
    with pytest.raises(CatalogError, match=r"was fitted beside laws .*; add --prices laws"):
        find_engine_time("beside-laws", engine="vllm", prices="tables")


# --- precedence ---


def test_the_users_entry_replaces_a_bundled_one_with_a_warning(home: Path) -> None:
    path = _write(home / "models/qwen3-8b.json", MOE)
    assert find_model("qwen3-8b").is_moe
    assert not find_model("Qwen/Qwen3-8B").is_moe  # another name of the bundled model
    said = f"model: your {path} replaces the bundled entry of the same name"
    assert payload("plan", "qwen3-8b", "--gpu", "h200")["warnings"][0] == said
    assert payload("price", "qwen3-8b", "--gpu", "h200")["warnings"][0] == said
    shown = run("duel", "qwen3-8b", "--gpu", "h200", "--alpha", "0.8").out
    assert _bare("instead of the bundled entry") in _bare(shown)
    assert _bare(f"your {path} replaces the bundled entry") in _bare(run("models", "qwen3-8b").out)


def test_an_engine_time_and_a_host_replace_the_bundled_ones(home: Path) -> None:
    _write(home / "engine-times/vllm.toml", _engine_time("2e-3"))
    time = find_engine_time(None, engine="vllm", prices="laws")
    assert (time.step_seconds, time.source.overrides) == (2e-3, True)
    assert find_engine_time(None, engine="sglang", prices="laws").source.file == ""
    (home / "engine-times/vllm.toml").unlink()
    before = find_engine_time("vllm:0.19", engine="vllm", prices="laws")
    slow = template("host").replace("kernel_launch_seconds = 28e-6", "kernel_launch_seconds = 90e-6")
    path = _write(home / "hosts/server.toml", slow)
    time = find_engine_time(None, engine="vllm", prices="laws")
    assert (time.kernel_launch_seconds, time.source.file, time.source.overrides) == (90e-6, str(path), True)
    assert before.kernel_launch_seconds == 28e-6
    assert find_host().launch_source.file == str(path)


def test_a_device_names_its_fabric(home: Path) -> None:
    _write(home / "gpus/my-gpu.toml", template("gpu", "h20") + 'fabric = "my-links"\n')
    device = find_device("my-gpu")
    book = find_links(device)
    assert book is not None
    found = book.collective("vllm", "all_reduce", 2) or book.collective("vllm", "all-reduce", 2)
    assert found is not None
    assert found[0].seconds_at[0] == 31e-6
    assert f"my switch (yours: {home}/fabrics/my-links.toml)" in found[1].detail
    find_prices(None, device, "vllm", RooflineForm.PER_COMPONENT)
    _write(home / "gpus/my-gpu.toml", template("gpu", "h20") + 'fabric = "my-link"\n')
    with pytest.raises(
        CatalogError, match="my-gpu: fabric 'my-link' is unknown; nearest: my-links; known: pcie-host-mem"
    ):
        find_links(find_device("my-gpu"))


def test_several_paths_and_the_first_one_counts(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("SPECMARGIN_CATALOG", f"{first}:{second}")
    _write(first / "models/my-moe.json", MOE | {"source": "first"})
    _write(second / "models/my-moe.json", MOE | {"source": "second"})
    _write(second / "models/other.json", MOE | {"source": "second", "hub_id": "me/other"})
    assert catalog_folders() == (first, second, home)
    assert find_model("my-moe").source.detail == "first"
    assert find_model("other").source.detail == "second"
    assert find_device("my-gpu").source.file == f"{home}/gpus/my-gpu.toml"


def test_a_path_that_does_not_exist_is_said(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMARGIN_CATALOG", f"{tmp_path / 'nowhere'}:{tmp_path}")
    said = f"SPECMARGIN_CATALOG: {tmp_path / 'nowhere'} is not a folder; correct or unset it"
    assert run("gpus", "my-gpu").err == f"specmargin: warning: {said}\n"
    with pytest.raises(CatalogError, match=said):
        find_model("my-mo")
    with pytest.raises(CatalogError, match=said):
        find_device("my-gp")


def test_a_changed_file_is_read_again(home: Path) -> None:
    assert find_model("my-moe").source.detail == "my own configuration"
    path = _write(home / "models/my-moe.json", MOE | {"source": "corrected"})
    assert find_model("my-moe").source.detail == "corrected"
    path.unlink()
    assert "my-moe" not in user_files("model")


# --- broken files ---

BROKEN = {
    "models/broken.json": ('{"hub_id": "a/b", "confg": {}}', "confg is not a known field; nearest: config"),
    "gpus/broken.toml": ("title = 3\n", "title must be text, got 3"),
    "drafters/broken.toml": ('drafter = "eagel"\n', "drafter must be 'eagle', 'dflash', 'dspark' or 'mtp'"),
    "engine-times/broken.toml": ("engine = [", "not valid TOML"),
    "fabrics/broken.toml": ('title = "x"\n', "is missing"),
    "hosts/server.toml": ("", "is empty"),
}


@pytest.mark.parametrize("name", [name for name in BROKEN if not name.startswith("hosts")])
def test_a_broken_file_concerns_nothing_else(home: Path, name: str) -> None:
    _write(home / name, BROKEN[name][0])
    assert run("plan", "my-moe", "--gpu", "my-gpu", "--drafter", "my-head,ngram").out
    assert run("plan", "qwen3-8b", "--gpu", "h200", "--drafter", "all").out
    assert "my-moe" in run("models").out
    assert "my-gpu" in run("gpus").out


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_field_and_fix(home: Path, name: str) -> None:
    content, complaint = BROKEN[name]
    path = _write(home / name, content)
    fault = payload("models", "--check", str(path), code=1)["checks"][0]["fault"]
    assert fault.startswith(f"{path}: ")
    assert complaint in fault
    assert _bare(f"not valid: {fault}") in _bare(run("models", "--check", str(path), code=1).out)


@pytest.mark.parametrize(
    "asked",
    [
        ("plan", "broken", "--gpu", "h200"),
        ("plan", "qwen3-8b", "--gpu", "broken"),
        ("plan", "qwen3-8b", "--gpu", "h200", "--drafter", "broken"),
        ("plan", "qwen3-8b", "--gpu", "h200", "--engine-time", "broken"),
    ],
)
def test_using_a_broken_file_is_one_sentence(home: Path, asked: tuple[str, ...]) -> None:
    for name, (content, _) in BROKEN.items():
        if "broken" in name:
            _write(home / name, content)
    said = run(*asked, code=2).err
    assert said.count("\n") == 1
    assert said.startswith(f"specmargin: {home}/")
    assert "/broken." in said


def test_lists_name_broken_files(home: Path) -> None:
    for name in ("models/broken.json", "gpus/broken.toml"):
        path = _write(home / name, BROKEN[name][0])
        verb = name.partition("/")[0]
        assert "warning: " in run(verb, "broken").out
        warnings = payload(verb, "broken")["warnings"]
        assert len(warnings) == 1
        assert warnings[0].startswith(f"{path}: {BROKEN[name][1]}")


def test_a_folder_that_may_not_be_read_is_as_none(home: Path) -> None:
    _write(home / "models.txt", "a file where nothing is looked for")
    (home / "hosts").write_text("a file in place of a folder")
    assert find_host().source.file == ""


# --- models --check ---


def test_check_prints_what_was_read(home: Path) -> None:
    by_name = {check["name"]: check for check in payload("models", "--check", str(home))["checks"]}
    assert set(by_name) == {"my-moe", "my-gpu", "my-head", "my-engine", "my-links"}
    assert by_name["my-moe"]["facts"]["parameters"] == "30,532,122,624"
    assert "my-moe on one h200" in by_name["my-moe"]["facts"]["a step"]
    assert by_name["my-gpu"]["facts"]["memory"] == "96 GB"
    assert "qwen3-8b on one my-gpu" in by_name["my-gpu"]["facts"]["a step"]
    assert by_name["my-head"]["facts"]["survival"] == "0.9, 0.7"
    assert by_name["my-engine"]["facts"]["step_seconds"] == "1000 µs"
    assert by_name["my-links"]["facts"]["2 GPUs"].startswith("31 µs for 16 KB")


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_kind_is_that_of_the_fields(kind: str, tmp_path: Path) -> None:
    path = _write(tmp_path / ("server" + (".json" if kind == "model" else ".toml")), template(kind))
    check = payload("models", "--check", str(path))["checks"][0]
    assert (check["kind"], check["valid"]) == (kind, True)


def test_stated_parameters_are_compared(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.json", MOE | {"parameters": 30.5e9})
    check = payload("models", "--check", str(path))["checks"][0]
    assert check["facts"]["parameters"] == "30,532,122,624 (stated: 30,500,000,000)"
    _write(path, MOE | {"parameters": 235e9})
    said = run("models", "--check", str(path), code=1).out
    assert _bare("parameters states 235,000,000,000, but the configuration gives 30,532,122,624") in _bare(said)


def test_a_model_is_checked_by_use(tmp_path: Path) -> None:
    config = {key: value for key, value in MOE["config"].items() if key != "num_hidden_layers"}
    path = _write(tmp_path / "mine.json", MOE | {"config": config})
    assert "num_hidden_layers" in run("models", "--check", str(path), code=1).out


def _warnings(path: Path) -> list[str]:
    warnings: list[str] = payload("models", "--check", str(path))["checks"][0]["warnings"]
    return warnings


def test_unusual_figures_of_a_gpu_are_said(tmp_path: Path) -> None:
    h200 = template("gpu", "h200")
    path = _write(tmp_path / "mine.toml", h200.replace("4.8e12", "0.1e12"))
    assert _warnings(path)[0].endswith("check the units of both")
    _write(path, h200.replace("bf16 = 989e12", "bf16 = 1979e12"))
    assert _warnings(path) == [
        "bf16 is 2.0 times that of h100 per multiprocessor: if it is a sparse rate, halve it",
        "aliases are read of bundled GPUs only: the file's name counts",
    ]
    _write(path, h200.replace("memory_bytes = 141e9", "memory_bytes = 141"))
    assert _bare("probably 141e9 was meant") in _bare(run("models", "--check", str(path), code=1).out)
    _write(path, h200.replace("NVIDIA H200 datasheet (SXM, dense)", ""))
    assert _bare("source must not be empty") in _bare(run("models", "--check", str(path), code=1).out)


def test_a_head_of_no_known_model(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.toml", _drafter("nobody"))
    fault = payload("models", "--check", str(path), code=1)["checks"][0]["fault"]
    assert fault.startswith(f"{path}: 'nobody' is neither a bundled model")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", json.dumps(MOE["config"]), "is a config.json by itself, which `specmargin plan"),
        ("mine.json", "[]", "an entry is a table of names and values, not a list"),
        (
            "mine.toml",
            "colour = 1\n",
            "has no field of an entry (model, gpu, drafter, engine-time, fabric, host, processor)",
        ),
        ("mine.toml", template("host"), "plans use the host 'server' alone; name the file server.toml"),
        ("eagle.toml", template("drafter"), "'eagle' is a kind of drafter; give the file another name"),
    ],
)
def test_files_that_are_no_entries(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    path = _write(tmp_path / name, content)
    assert complaint in payload("models", "--check", str(path), code=1)["checks"][0]["fault"]


def test_check_template_and_schema_are_told_apart(tmp_path: Path) -> None:
    said = run("models", "--check", str(tmp_path), "--schema", "gpu", code=2).err
    assert "--check, --template and --schema: give one of them" in said
    assert "unknown kind 'gpus'; nearest: gpu" in run("models", "--schema", "gpus", code=2).err
    assert "no entries; a catalog has the folders models, gpus" in run("models", "--check", str(tmp_path), code=2).err
    missing = run("models", "--check", str(tmp_path / "x.toml"), code=1).out
    assert _bare("cannot be read (no such file)") in _bare(missing)
    assert json.loads(run("models", "--schema", "gpu").out)["title"] == "Specmargin catalog: gpu"
    file = tmp_path / "mine.toml"
    assert run("models", "--template", "drafter", "-o", str(file)).out == ""
    assert file.read_text() == template("drafter")


def test_broken_devices_are_hardware_errors(home: Path) -> None:
    _write(home / "gpus/broken.json", "[1]")
    with pytest.raises(HardwareError, match="a device is a table of names and values, not a list"):
        find_device("broken")
