"""Bad input: one sentence that names the file or the option and the fix, a non-zero exit code, and no file left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from specmargin.acceptance.schema import AcceptanceFile
from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.lookup import find_model
from specmargin.hardware.schema import DeviceTable
from specmargin.live.policy_schema import PolicyFile
from specmargin.live.settings_schema import Settings
from specmargin.prices.measured_schema import PriceFile
from specmargin.routing.schema import RoutingFile
from specmargin.schema import complaint
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.verbs.coverage import CoverageRequest
from specmargin.verbs.design import DesignRequest
from specmargin.verbs.duel import DuelRequest
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.price import PriceRequest
from specmargin.verbs.simulate.request_schema import SimulateRequest
from specmargin.verbs.sweep import SweepFile
from tests import command_line
from tests.command_line import Ended

MOE, DENSE = "qwen3.6-35b-a3b", "qwen3-8b"
PLAN = ("plan", MOE, "--gpu", "h200")
SIMULATE = ("simulate", MOE, "--gpu", "h200")
BOM = "\ufeff"
DEVICE = """title = "a card"
memory_bytes = 141e9
bandwidth_bytes_per_second = 1e12
operations_per_second = { bf16 = 100e12 }
link_bytes_per_second = 32e9
link_latency_seconds = 15e-6
gpus_per_node = 2
source = "its datasheet"
"""


ABSURD = {
    "hidden_size": 10**12,
    "num_hidden_layers": 10**9,
    "num_experts": 10**7,
    "num_attention_heads": 10**9,
    "vocab_size": 10**12,
    "moe_intermediate_size": 10**13,
}
SURVIVAL: dict[str, Any] = {
    "schema": "specmargin.acceptance/1",
    "name": "x",
    "speculator": "",
    "source": "s",
    "categories": {"all": {"rounds": 1, "survival": [2.0], "survival_stderr": [0]}},
    "calibrator": None,
    "sample": [],
}


def config(name: str = DENSE) -> str:
    return json.dumps(read_bundled(f"models/{name}.json")["config"])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ended]:
    """The command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command_line.ended


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The files that the cases below name."""
    texts = {
        "object.json": '{"a": 1}',
        "list.json": "[1, 2]",
        "cut.json": '{"model_type": "qwen3", ',
        "empty.json": "",
        "empty.toml": " \n",
        "lines.jsonl": '{"timestamp": 0}\nnot json\n',
        "numbers.jsonl": "1\n2\n",
        "ragged.csv": "arrival_seconds,prompt_tokens,output_tokens\n0,1,2\n1,2,3,4\n",
        "words.csv": "arrival_seconds,prompt_tokens,output_tokens\n0,many,2\n",
        "empty.csv": "",
        "card.toml": DEVICE.replace("141e9", '"large"'),
        "typo.toml": DEVICE + "memory = 3\n",
        "keys.toml": DEVICE.replace("bf16", "bf17"),
        "run.toml": 'model = "x"\ngpu = "h200"\nconcurrency = "many"\nrequests = 3\n',
        "old.toml": '[scenario]\nmodel = "x"\ngpu = "h200"\n[workload]\nrequests_per_second = 3\n',
        "rates.toml": 'model = "x"\ngpu = "h200"\nrequests_per_second = 3\n',
        "grid.toml": '[base]\nmodel = "x"\ngpu = "h200"\nconcurrency = 1\nrequests = 1\n[grid]\n',
        "mine.rows.jsonl": "something else\n",
        "rounds.csv": "commits,category\n3,a\nx,b\n",
        "layers.json": json.dumps(json.loads(config()) | {"num_hidden_layers": -3}),
        "survival.json": json.dumps(SURVIVAL),
        "empty-grid.toml": "base.seed = 1\ngrid.policy = []\n",
        "gigabytes.toml": DEVICE.replace("bandwidth_bytes_per_second = 1e12", "bandwidth_bytes_per_second = 4800"),
        "terabytes.toml": DEVICE.replace("bandwidth_bytes_per_second = 1e12", "bandwidth_bytes_per_second = 4.8"),
        "bits.toml": DEVICE.replace("bandwidth_bytes_per_second = 1e12", "bandwidth_bytes_per_second = 4.8e15"),
        "memory.toml": DEVICE.replace("141e9", "141"),
        "teraflops.toml": DEVICE.replace("100e12", "989"),
        "latency.toml": DEVICE.replace("15e-6", "15"),
        "generation.toml": DEVICE + 'architecture = "sm_9x"\n',
        "family.json": json.dumps(json.loads(config()) | {"model_type": 5}),
        "quantized.json": json.dumps(json.loads(config()) | {"quantization_config": []}),
        "block.json": json.dumps(
            json.loads(config()) | {"quantization_config": {"quant_method": "fp8", "weight_block_size": "x"}}
        ),
        "deep.json": "[" * 100_000,
        "laws.json": '{"schema": "specmargin.laws/1", "source": "x", "kernels": {}, "laws": ["x"]}',
        "lengths.toml": 'model = "x"\ngpu = "h200"\nqps = 1\nisl = {ln_mean = 1e9, ln_sd = 1}\n',
        **{
            f"{key}.json": json.dumps(json.loads(config("qwen3-30b-a3b")) | {key: size}) for key, size in ABSURD.items()
        },
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "utf16.json").write_bytes("{}".encode("utf-16"))
    (tmp_path / "binary.json").write_bytes(b"{\x80\x81}")
    (tmp_path / "folder").mkdir()
    for first, second in (("loop", "loop2"), ("loop2", "loop"), ("dangling.json", "nowhere.json")):
        (tmp_path / first).symlink_to(second)
    return tmp_path


CASES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    # the twelve poor messages
    (("watch", "http://localhost:99999"), ("http://localhost:99999", "port must be a number in 1..65535")),
    (("profile", "routing", "object.json", "--experts", "8"), ("object.json", "not a complete .npy", "give")),
    ((*PLAN, "--qps", "1", "--isl", "9", "--osl", "9", "--tpot-slo", "-1"), ("--tpot-slo", "above 0, got -1\n")),
    ((*PLAN, "--concurrency", "99999"), ("--concurrency must be at most 8,192, got 99999",)),
    ((*PLAN, "--prefix-hit", "1"), ("--prefix-hit must be below 1, got 1",)),
    ((*PLAN, "--max-num-batched-tokens", "100m"), ("--max-num-batched-tokens must be at most 16,777,216",)),
    ((*PLAN, "--batch", "99999999999999999999"), ("--batch", "too large", "at most 65,536")),
    (("measure", "gpu", "-o", "missing/x.json"), ("missing/x.json", "the folder missing does not exist; create it")),
    (("plan", "loop", "--gpu", "h200"), ("loop", "symbolic link that leads back to itself")),
    (("plan", MOE, "--gpu", "loop"), ("loop", "symbolic link that leads back to itself")),
    (("plan", "dangling.json", "--gpu", "h200"), ("dangling.json", "link to nowhere.json, which does not exist")),
    ((*SIMULATE, "--trace", "lines.jsonl"), ("lines.jsonl: line 2 is not a JSON object; write one per line",)),
    (("profile", "acceptance", "lines.jsonl"), ("lines.jsonl: line 2 is not a JSON object",)),
    ((*PLAN, "--prices", "object.json"), ("object.json: 'schema' must be", "`specmargin measure gpu`")),
    ((*PLAN, "-o", "folder"), ("folder: is a folder; give the name of a file in it, such as folder/FILE",)),
    ((*PLAN, "--plot", "folder"), ("folder: the name of a figure must end in",)),
    (("plan", MOE, "--gpu", "card.toml"), ("card.toml: memory_bytes must be a number, got 'large'",)),
    # what passed silently
    (("gpus", "extra"), ("no bundled GPU has 'extra' in its name", "`specmargin gpus`")),
    (("models", "foo", "--json"), ("no bundled model has 'foo' in its name",)),
    (("models", "qwen3-7b"), ("nearest: ",)),
    ((*SIMULATE, "--qps", "1", "--isl", "10m"), ("10,485,860 tokens is beyond the 262,144", "--isl")),
    ((*SIMULATE, "--qps", "1", "--isl", "100000000"), ("--isl: must be 1 to 16,777,216 tokens, got 100000000",)),
    ((*PLAN, "--policy", ""), ("--policy has an empty value", "leave it out")),
    ((*PLAN, "--policy="), ("--policy has an empty value",)),
    ((*SIMULATE, "--qps", "1", "--policy", ""), ("--policy has an empty value",)),
    (("plan", DENSE, "--gpu", "h200", "--routing", MOE), ("--routing", "qwen3-8b is dense", "leave --routing out")),
    (("report", MOE, "--gpu", "h200", "-o", "missing/x.html"), ("missing/x.html", "does not exist; create it first")),
    # files of every kind
    (("plan", "object.json", "--gpu", "h200"), ("object.json", "'model_type' is missing")),
    (("plan", "list.json", "--gpu", "h200"), ("list.json", "is a JSON object")),
    (("plan", "cut.json", "--gpu", "h200"), ("cut.json: not valid JSON", "line 1, column")),
    (("plan", "empty.json", "--gpu", "h200"), ("empty.json: is empty",)),
    (("plan", "utf16.json", "--gpu", "h200"), ("utf16.json: is text in UTF-16; save it as UTF-8",)),
    (("plan", "binary.json", "--gpu", "h200"), ("binary.json: not a text file in UTF-8 (at byte 1)",)),
    (("plan", "folder", "--gpu", "h200"), ("folder: no config.json here",)),
    (("plan", MOE, "--gpu", "folder"), ("folder: cannot be read (it is a folder; give a file)",)),
    (("plan", MOE, "--gpu", "empty.toml"), ("empty.toml: is empty",)),
    (("plan", MOE, "--gpu", "typo.toml"), ("typo.toml: memory is not a known field",)),
    (("plan", MOE, "--gpu", "keys.toml"), ("keys.toml: operations_per_second.bf17 must be 'fp32'",)),
    (("plan", MOE, "--gpu", "object.json"), ("object.json: title is missing",)),
    ((*PLAN, "--prices", "nowhere.json"), ("nowhere.json: cannot be read (no such file)",)),
    ((*PLAN, "--prices", "object.json/x.json"), ("object.json/x.json", "a part of its path is a file")),
    ((*PLAN, "--routing", "object.json"), ("object.json: schema is missing; `specmargin profile routing` writes",)),
    ((*PLAN, "--routing", "empty.json"), ("empty.json: is empty",)),
    ((*PLAN, "--acceptance", "object.json"), ("object.json: schema is missing",)),
    ((*PLAN, "--drafter", "eagle:nowhere.json"), ("nowhere.json: cannot be read (no such file)",)),
    ((*PLAN, "-o", "missing/flags.txt"), ("missing/flags.txt: cannot be written", "create it first")),
    ((*PLAN, "--policy", "missing/p.json"), ("missing/p.json: cannot be written", "create it first")),
    ((*PLAN, "-o", "x" * 300), ("cannot be written (the name is too long for a file)",)),
    ((*PLAN, "-o", "object.json"), ("object.json exists; give --force",)),
    ((*SIMULATE, "--trace", "nowhere.csv"), ("nowhere.csv: cannot be read (no such file)",)),
    ((*SIMULATE, "--trace", "ragged.csv"), ("ragged.csv: ", "line 3")),
    ((*SIMULATE, "--trace", "words.csv"), ("words.csv: line ", "must hold numbers")),
    ((*SIMULATE, "--trace", "empty.csv"), ("empty.csv: is empty",)),
    ((*SIMULATE, "--trace", "numbers.jsonl"), ("numbers.jsonl: line 1 is not a JSON object",)),
    (("simulate", "run.toml"), ("run.toml: concurrency must be a whole number, got 'many'",)),
    (("simulate", "old.toml"), ("old.toml: scenario is not a known field",)),
    (
        ("simulate", "rates.toml"),
        ("rates.toml: requests_per_second is not a known field; nearest: sessions_per_second, requests",),
    ),
    (("sweep", "empty.toml"), ("empty.toml: is empty",)),
    (("sweep", "object.json"), ("object.json: not valid TOML",)),
    (("sweep", "run.toml"), ("run.toml: base is missing",)),
    (("sweep", "grid.toml", "-o", "missing/x.jsonl"), ("missing/x.jsonl", "does not exist")),
    (("measure", "gpu", "--gpu", "h2000", "-o", "x.json"), ("unknown GPU 'h2000'; nearest: h200",)),
    (("measure", "gpu", "-o", "mine.json"), ("mine.rows.jsonl is not a measurement: give another -o",)),
    (("watch", "http://localhost:port"), ("port must be a number",)),
    (("watch", "localhost:8000"), ("must begin with http://",)),
    # numbers
    ((*PLAN, "--context", "64kb"), ("--context: '64kb' is not a whole number such as 512 or 8k",)),
    ((*PLAN, "--context", "9" * 5000), ("--context", "is too large")),
    ((*PLAN, "--gpus", "0"), ("--gpus must be at least 1, got 0",)),
    ((*PLAN, "--memory-utilization", "90"), ("--memory-utilization must be at most 1, got 90",)),
    ((*PLAN, "--min-gain", "-1"), ("--min-gain must be at least 0, got -1",)),
    ((*SIMULATE, "--qps", "0"), ("--qps must be above 0, got 0",)),
    ((*SIMULATE, "--qps", "1e-320"), ("simulated clock overflows", "--qps")),  # it never ended
    ((*PLAN, "--qps", "1e-320", "--isl", "9", "--osl", "9"), ("simulated clock overflows", "--qps")),
    ((*SIMULATE, "--qps", "1", "--ttft-slo", "0"), ("--ttft-slo must be above 0",)),
    ((*SIMULATE, "--qps", "1", "--requests", "99999999999"), ("--requests must be at most 10,000,000",)),
    ((*SIMULATE, "--qps", "1", "--max-num-seqs", "1000000"), ("--max-num-seqs must be at most 65,536",)),
    (("coverage", MOE, "--layer", "-1"), ("--layer must be at least 0, got -1",)),
    (("plan", "", "--gpu", "h200"), ("MODEL must not be empty\n",)),
    ((*PLAN, "--max-batch", "0"), ("--max-batch must be at least 1, got 0\n",)),
    (
        ("plan", "layers.json", "--gpu", "h200"),
        ("layers.json: 'num_hidden_layers' must be a whole number, not negative, got -3",),
    ),
    ((*PLAN, "--acceptance", "survival.json"), ("survival.json: categories.all.survival.0 must be at most 1, got 2",)),
    (("profile", "acceptance", "rounds.csv"), ("rounds.csv: the column 'commits' must hold whole numbers",)),
    (("sweep", "empty-grid.toml"), ("empty-grid.toml: grid.policy has no values",)),
    (("price", MOE, "--gpu", "h200", "-o", "x.xlsx"), ("x.xlsx: the name of a table must end in .csv or .parquet",)),
    (("sweep", "grid.toml", "-o", "x.csv"), ("x.csv: -o takes finished cells", "--table FILE.csv")),
    (("sweep", "grid.toml", "--workers", "x"), ("--workers must be a whole number, got 'x'",)),
    (("sweep", "grid.toml", "--workers", "0"), ("--workers must be at least 1, got 0",)),
    (("watch", "http://localhost:1", "--interval", "x"), ("--interval must be a number, got 'x'",)),
    (("explore", "--port", "99999"), ("--port must be at most 65,535, got 99999",)),
    ((*PLAN, "--parallel", "xx"), ("--parallel: 'xx' is not one of 'tp', 'ep', 'dp-ep'; see",)),
    (("duel", MOE, "--gpu", "h200", "--alpha", "90%"), ("--alpha must be a number, got '90%'",)),
    # units and sizes
    (
        ("plan", MOE, "--gpu", "gigabytes.toml"),
        ("gigabytes.toml: bandwidth_bytes_per_second is 4800", "4800e9 was meant"),
    ),
    (("plan", MOE, "--gpu", "terabytes.toml"), ("bandwidth_bytes_per_second is 4.8,", "probably 4.8e12 was meant")),
    (("plan", MOE, "--gpu", "bits.toml"), ("bandwidth_bytes_per_second is 4.8e+15", "probably 4.8e+12 was meant")),
    (("plan", MOE, "--gpu", "memory.toml"), ("memory.toml: memory_bytes is 141", "probably 141e9 was meant")),
    (("plan", MOE, "--gpu", "teraflops.toml"), ("operations_per_second.bf16 is 989", "probably 989e12 was meant")),
    (("plan", MOE, "--gpu", "latency.toml"), ("latency.toml: link_latency_seconds must be at most 0.1, got 15",)),
    (
        ("plan", MOE, "--gpu", "generation.toml"),
        ("generation.toml: architecture: 'sm_9x' is not a generation",),
    ),
    (("plan", "family.json", "--gpu", "h200"), ("family.json: 'model_type' must be text, got 5",)),
    (("plan", "quantized.json", "--gpu", "h200"), ("quantized.json: 'quantization_config' must be an object",)),
    (("plan", "block.json", "--gpu", "h200"), ("block.json: 'weight_block_size' must list positive whole numbers",)),
    (("plan", "deep.json", "--gpu", "h200"), ("deep.json: not usable JSON (brackets are nested too deeply)",)),
    ((*PLAN, "--prices", "laws.json"), ("laws.json: every entry of 'laws' must be an object",)),
    ((*PLAN, "--routing", "uniform:x"), ("unknown routing profile 'uniform:x'; nearest: uniform",)),
    ((*PLAN, "--graph-limit", "9" * 20), ("--graph-limit must be at most 16,777,216",)),
    (("simulate", "lengths.toml"), ("lengths.toml: isl.ln_mean must be at most 17, got 1000000000",)),
    (("validate", "speedups", "folder"), ("folder: cannot be read (it is a folder; give a file)",)),
    (("validate", "speedups", "binary.json"), ("binary.json: not a text file in UTF-8",)),
    *(
        (("plan", f"{key}.json", "--gpu", "h200"), (f"{key}.json: '{key}' must be at most", f"got {size:,}"))
        for key, size in ABSURD.items()
    ),
    ((*PLAN, "--context", "10m"), ("a context of 10,485,760 tokens is beyond the 262,144", "shorter --context")),
    ((*PLAN, "-o", "x.xlsx"), ("x.xlsx: .xlsx files are not written", "FILE.csv or FILE.parquet", "--plot FILE.png")),
    ((*PLAN, "-o", "x.PNG"), ("x.PNG: .PNG files are not written", "--plot FILE.png")),
    (
        ("plan", DENSE, "--gpu", "rtx-4090", "--weights", "int4-g128", "--drafter", "model:qwen3-14b"),
        ("model:qwen3-14b beside qwen3-8b does not fit", "smaller --draft-weights"),
    ),
    ((*SIMULATE, "--qps", "1", "--policy", "fixed:5", "--depth", "4"), ("--policy fixed:5", "raise --depth")),
    ((*SIMULATE, "--qps", "1", "--policy", "fixed:99999"), ("--policy fixed:99999", "raise --depth")),
    ((*PLAN, "--rutting", "x"), ("--routing", "`specmargin plan --help-all`")),
]


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=lambda value: " ".join(value)[:70])
def test_one_sentence_with_the_file_and_the_fix(
    run: Callable[..., Ended], files: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = {path.name for path in files.rglob("*")}
    ended = run(*arguments)
    assert ended.code == 2, ended
    assert ended.out == ""
    assert ended.err.startswith("specmargin: ")
    assert ended.err.count("\n") == 1
    for word in words:
        assert word in ended.err
    for jargon in ("Error", "Input should", "Errno", "allow_pickle", "scripts/"):
        assert jargon not in ended.err
    assert {path.name for path in files.rglob("*")} == before, "a file was left behind"


def test_a_sweep_in_which_every_cell_fails_fails(run: Callable[..., Ended], tmp_path: Path) -> None:
    base = 'base = {model = "nope", gpu = "h200", concurrency = 1, requests = 1}\n'
    (tmp_path / "grid.toml").write_text(base + 'grid.policy = ["none"]\n')
    ended = run("sweep", "grid.toml", "--workers", "1")
    assert ended.code == 1
    assert "'nope' is neither a bundled model" in " ".join(ended.out.split())


@pytest.mark.parametrize("arguments", [(), ("profile",), ("measure",)])
def test_nothing_to_do_shows_the_help_page(run: Callable[..., Ended], arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert "Usage: specmargin" in ended.out
    assert ended.err == ""


# --- good input in an unusual form ---


def test_a_fixed_policy_needs_no_depth(run: Callable[..., Ended]) -> None:
    ended = run(*SIMULATE, "--qps", "2", "--requests", "10", "--policy", "fixed:12,none", "--prices", "laws", "--json")
    assert ended.code == 0, ended.err
    assert [part["policy"] for part in json.loads(ended.out)["policies"]] == ["fixed:12", "none"]


def test_a_parquet_file_without_polars_names_the_extra(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    for arguments in ((*PLAN, "--prices", "laws"), ("models",)):
        ended = run(*arguments, "-o", "b.parquet")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "specmargin: polars is not installed; run: pip install 'specmargin[fast]'\n"
    assert not list(tmp_path.iterdir())


def test_plan_and_simulate_consider_the_same_depths() -> None:
    assert PlanRequest.model_fields["depth"].default == SimulateRequest.model_fields["depth"].default


def test_endings_of_tables_in_capitals(run: Callable[..., Ended], tmp_path: Path) -> None:
    assert run(*PLAN, "--batch", "1", "--prices", "laws", "-o", "t.CSV").code == 0
    assert (tmp_path / "t.CSV").read_text(encoding="utf-8").startswith("batch,")


SHORT = ("--gpu", "h200", "--batch", "1", "--prices", "laws", "--json")


def test_a_byte_order_mark_is_not_in_the_way(run: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(BOM + config(), encoding="utf-8")
    (tmp_path / "card.toml").write_text(BOM + DEVICE, encoding="utf-8")
    ended = run("price", "model.json", "--gpu", "card.toml", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["gpu"] == "card"


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_configuration_from_standard_input(run: Callable[..., Ended], name: str) -> None:
    ended = run("plan", name, *SHORT, "--compare", "datasheet", stdin=config())  # read twice: once per price source
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["model"] == "stdin"


def test_a_model_of_a_pipe(tmp_path: Path) -> None:
    import os  # noqa: PLC0415
    from threading import Thread  # noqa: PLC0415

    os.mkfifo(tmp_path / "pipe")
    Thread(target=(tmp_path / "pipe").write_text, args=(config(),), daemon=True).start()
    assert find_model(str(tmp_path / "pipe")) == find_model(str(tmp_path / "pipe"))


def test_empty_standard_input_is_named(run: Callable[..., Ended]) -> None:
    ended = run("plan", "-", *SHORT, stdin="")
    assert (ended.code, "standard input: is empty" in ended.err) == (2, True)


# --- wrong types, in Specmargin's words ---

MODELS: tuple[type[BaseModel], ...] = (
    AcceptanceFile,
    CoverageRequest,
    DesignRequest,
    DeviceTable,
    DuelRequest,
    PlanRequest,
    PolicyFile,
    PriceFile,
    PriceRequest,
    PageRequest,
    RoutingFile,
    Settings,
    SimulateRequest,
    SweepFile,
)
WRONG: tuple[Any, ...] = (None, True, 3, 2.5, -1e300, "word", "", [], ["a"], {"a": 1}, {1: 2}, [[]], float("nan"))
PYDANTIC = ("Input should", "input should", "valid ", "unable to", "Value error", "validation", "instance of", "None")


def _models_inside(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield kind
    for field in kind.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel) and part is not kind:
                yield from _models_inside(part)


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_wrong_types_are_reported_in_plain_words(kind: type[BaseModel]) -> None:
    seen = 0
    for model in dict.fromkeys(_models_inside(kind)):
        for name, field in model.model_fields.items():
            for value in WRONG:
                try:
                    model.model_validate({field.alias or name: value})
                except ValidationError as error:
                    for fault in error.errors():
                        text = complaint(fault)
                        assert not any(word in text for word in PYDANTIC), (name, value, text)
                        seen += fault["type"] != "missing"
    assert seen > 5
