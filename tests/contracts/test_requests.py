"""One model of what can be asked: every verb that takes a scenario takes all of it, and ignores nothing.

An option either can change the answer, which is shown here by an example, or is refused with a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from specmargin.answers.options_schema import request_options
from specmargin.answers.request_schema import ScenarioRequest
from specmargin.catalog.engine_times import engine_time_names
from specmargin.cli.main import run
from specmargin.errors import InputError
from specmargin.formats import ENGINES
from specmargin.modes import DRAFTERS, POLICIES
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.schema import Query, ScenarioQuery
from specmargin.simulator.policies import MAKERS
from specmargin.verbs.coverage import CoverageRequest
from specmargin.verbs.design import DesignRequest
from specmargin.verbs.duel import DuelRequest
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.price import PriceRequest
from specmargin.verbs.simulate.request_schema import SimulateRequest

FIELDS = tuple(ScenarioRequest.model_fields)
REQUESTS: dict[str, type[ScenarioRequest]] = {
    "plan": PlanRequest,
    "price": PriceRequest,
    "duel": DuelRequest,
    "design": DesignRequest,
    "coverage": CoverageRequest,
    "simulate": SimulateRequest,
    "report": PageRequest,
}
# A question for each verb that every option has something to say about; `report` and the page draw what `plan` says.
ASKED = {
    "plan": ["--batch", "1,64", "--depth", "3"],
    "price": ["--batch", "64", "--depth", "3"],
    "duel": ["--batch", "300", "--alpha", "0.8"],
    "design": ["--batch", "64", "--experts", "128", "--experts-per-token", "8", "--shared", "0"],
    "coverage": ["--batch", "64", "--positions", "1,8"],
    "simulate": [
        "--concurrency",
        "16",
        "--requests",
        "24",
        "--isl",
        "4000",  # so that kernels of prompts take longer than their launches
        "--osl",
        "8",
        "--policy",
        "off,fixed:2,schedule",
    ],
}
BASE = {"model": "qwen3.6-35b-a3b", "gpu": "h200", "gpus": "2", "parallel": "ep", "prices": "laws", "drafter": "mtp"}
# Another value for each field, and what else must be said for it to matter.
OTHER: dict[str, dict[str, str]] = {
    "model": {"model": "qwen3-30b-a3b", "drafter": "eagle"},
    "gpu": {"gpu": "b200"},
    "gpus": {"gpus": "4"},
    "parallel": {"parallel": "dp-ep"},
    "tp": {"parallel": "tp", "tp": "1"},  # refused: not all GPUs of --gpus
    "dp": {"parallel": "tp", "dp": "2"},
    "ep": {"parallel": "tp", "ep": ""},
    "pp": {"parallel": "tp", "pp": "2"},
    "redundant_experts": {"redundant_experts": "2"},
    "nodes": {"nodes": "2"},
    "fabric": {"nodes": "2", "fabric": "infiniband-ndr"},
    "placement": {"model": "REFERENCE", "drafter": "eagle", "routing": "reference-moe", "placement": "balanced"},
    "experts_on": {"engine": "sglang", "parallel": "tp", "experts_on": "cpu"},
    "n_cpu_moe": {"engine": "llamacpp", "parallel": "tp", "n_cpu_moe": "20"},
    "gpu_experts": {"engine": "sglang", "parallel": "tp", "experts_on": "cpu", "gpu_experts": "64"},
    "cpu": {"engine": "llamacpp", "parallel": "tp", "n_cpu_moe": "20", "cpu": "epyc-7763"},
    "host_memory": {"engine": "llamacpp", "parallel": "tp", "n_cpu_moe": "20", "host_memory": "16"},  # refused
    "pcie": {"engine": "llamacpp", "parallel": "tp", "n_cpu_moe": "20", "pcie": "3x4"},
    "weights": {"weights": "fp8"},
    "kv_cache": {"kv_cache": "fp8"},
    "memory_utilization": {"memory_utilization": "0.001"},  # nothing fits
    "drafter": {"drafter": "eagle"},
    "draft_weights": {"draft_weights": "fp8"},
    "draft_vocabulary": {"draft_vocabulary": "32000"},
    "acceptance": {"acceptance": "0.3"},
    "draft_p_min": {"engine": "llamacpp", "parallel": "tp", "draft_p_min": "0.9"},
    "routing": {"routing": "uniform"},
    "context": {"context": "128k"},
    "engine": {"engine": "sglang"},
    "backend": {"engine": "llamacpp", "parallel": "tp", "backend": "vulkan"},  # refused beside --prices
    "prices": {"prices": "datasheet"},
    "form": {"prices": "datasheet", "context": "4k", "form": "whole-step"},
    "engine_time": {"engine_time": "none"},
    "graph_limit": {"graph_limit": "8"},
    "step_ms": {"step_ms": "3"},
    "sequence_ms": {"sequence_ms": "0.5"},
    "position_us": {"position_us": "20"},
    "layer_us": {"layer_us": "90"},
    "verify_ms": {"verify_ms": "3"},
    "verify_sequence_ms": {"verify_sequence_ms": "0.5"},
    "verify_token_us": {"verify_token_us": "50"},
    "draft_pass_ms": {"draft_pass_ms": "2"},
    "off_ms": {"acceptance": "0.001", "off_ms": "2"},
}


_ANSWERS: dict[tuple[str, ...], Any] = {}


def base_answer(verb: str, scenario: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Any:
    """Most fields are changed from the same base: its answer is computed once per verb."""
    key = (verb, *(f"{name}={value}" for name, value in sorted(scenario.items())))
    if key not in _ANSWERS:
        _ANSWERS[key] = answer(verb, scenario, capsys)
    return _ANSWERS[key]


def answer(verb: str, scenario: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Any:
    """What the verb prints as JSON, without the names of what was asked; or the sentence that refuses it."""
    unused = REQUESTS[verb].unused
    model, options = scenario["model"], {name: value for name, value in scenario.items() if name != "model"}
    flags = _flags({name: value for name, value in options.items() if name not in unused})
    try:
        assert run(verb, [model, *flags, *ASKED[verb], "--json"]) == 0
    except InputError as error:
        return str(error)
    return _numbers(json.loads(capsys.readouterr().out))


def _flags(options: dict[str, str]) -> list[str]:
    """As words of a command line; a value that is empty belongs to a switch."""
    return [word for name, value in options.items() for word in (_flag(name), value) if word]


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _numbers(value: Any) -> Any:
    """Only what was worked out: numbers, with the names of their fields."""
    if isinstance(value, dict):
        left_out = ("sources", "options", "context", "gpus", "warnings")
        return {key: _numbers(part) for key, part in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return value if isinstance(value, int | float) else None


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=[] if verb == "plan" else [pytest.mark.slow]) for verb in ASKED]
)
def test_no_option_is_ignored(verb: str, field: str, capsys: pytest.CaptureFixture[str], reference: Path) -> None:
    changes = {name: value.replace("REFERENCE", str(reference)) for name, value in OTHER[field].items()}
    if field in REQUESTS[verb].unused:
        changed = {"model": BASE["model"], "gpu": BASE["gpu"], field: OTHER[field][field]}
        flags = _flags({name: value for name, value in changed.items() if name != "model"})
        with pytest.raises(InputError, match=f"^{_flag(field)}: .*; leave it out$"):
            run(verb, [changed["model"], *flags, *ASKED[verb], "--json"])
        return
    base = BASE | {name: value for name, value in changes.items() if name != field}
    assert base_answer(verb, base, capsys) != answer(verb, base | changes, capsys)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that the bundled routing profile of the reference MoE was made for: it knows which expert is
    which, so that placing experts makes a difference."""
    config = {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path_factory.mktemp("reference") / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("verb", list(REQUESTS))
def test_every_verb_has_every_option_and_explains_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {option.field: option for option in request_options(REQUESTS[verb])}
    assert set(FIELDS) <= set(options)
    assert all(option.help for option in options.values())
    assert run(verb, ["--help-all"]) == 0
    text = capsys.readouterr().out
    for option in options.values():
        if not option.shown.argument:
            assert (_flag(option.field) in text) is not option.unused, option.field


@pytest.mark.parametrize(
    ("verb", "field", "names"),
    [
        ("plan", "drafter", DRAFTERS),
        ("plan", "engine", ENGINES),
        ("plan", "engine_time", engine_time_names()),
        ("simulate", "policy", POLICIES),
    ],
)
def test_help_lists_every_name(verb: str, field: str, names: Iterable[str]) -> None:
    text = REQUESTS[verb].model_fields[field].description or ""
    listed = set(re.findall(r"[\w:.-]*\w", text))
    assert [name for name in names if not listed & {name, f"{name}:MODEL"}] == []


def test_every_policy_is_registered() -> None:
    """The help reads the names from a module without NumPy; the simulator builds the policies."""
    assert POLICIES[:3] == ("none", "off", "fixed:K")
    assert set(POLICIES[3:]) == set(MAKERS)


def test_the_page_checks_every_text_field() -> None:
    """A text may name a file, and the page must not read files by name: `Query` limits and checks each of them."""
    texts = [name for name, field in PageRequest.model_fields.items() if {str, Path} & _parts(field.annotation)]
    assert texts
    validated = {
        name for entry in Query.__pydantic_decorators__.field_validators.values() for name in entry.info.fields
    }
    assert set(texts) <= ScenarioQuery.__annotations__.keys() & validated


def _parts(annotation: Any) -> set[Any]:
    """The types that an annotation is made of: `str | None` has str."""
    inner = [_parts(part) for part in get_args(annotation)]
    return {annotation}.union(*inner)


def test_files_and_the_page_ask_for_the_same() -> None:
    assert issubclass(Query, ScenarioRequest)
    assert set(OTHER) == set(FIELDS)
