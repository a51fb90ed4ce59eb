"""`doctor`: every cause is named on a server that has it, and none on a healthy one.

Servers are made by the prices themselves (`tests/servers.py`), with one fault each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specmargin
from specmargin.answers.verb import silent
from specmargin.decisions.setting import Setting
from specmargin.live.observation import Moment, Observation, ServerSettings
from specmargin.live.observe import IdleError
from specmargin.show.terminal import WIDTH, show
from specmargin.verbs.doctor.diagnosis import Status
from specmargin.verbs.doctor.machine import Machine, parse_machine
from specmargin.verbs.doctor.readings import answer_of, answers
from specmargin.verbs.doctor.request_schema import DoctorRequest
from tests.command_line import ended, payload
from tests.servers import EAGER, NO_DRAFT_GRAPHS, PIECEWISE, Server

LOADS = [1.0, 2.0, 4.0, 16.0, 64.0, 128.0]
GENERATED = {"requests": 40.0, "ended_at_limit": 1.0, "equal_prompts": True, "equal_outputs": True}
GENERATED |= {"cached_prompt_share": 0.0}
NOTHING = {"rounds": 0.0, "drafted_per_round": None, "accept_length": None, "survival": ()}
NVIDIA_SMI = "99 %, 700 MHz, 1980 MHz, Disabled, Not Active, Not Active"


def _decaying(lengths: list[tuple[float, float]]) -> tuple[Moment, ...]:
    return tuple(Moment(context=context, accept_length=length, running=16.0) for context, length in lengths)


DECAY = _decaying([(1e3, 2.8), (2e3, 2.7), (3e3, 2.6), (8e3, 2.2), (16e3, 1.9), (32e3, 1.6)])

#: By the cause that must lead; several servers each, after a colon what differs.
FAULTS: dict[str, Server] = {
    "drafter-broken": Server(survival=(0.02, 0.001, 0.0)),
    "drafter-broken: dense, EAGLE-3": Server(model="qwen3-8b", drafter="eagle", survival=(0.08, 0.01, 0.0), batch=4),
    "drafter-broken: random tokens too": Server(survival=(0.005, 0.0, 0.0), seen=GENERATED),
    "drafter-later-positions": Server(survival=(0.78, 0.05, 0.01)),
    "depth-too-deep": Server(batch=64, depth=7, survival=(0.66, 0.36, 0.2, 0.12, 0.07, 0.04, 0.02)),
    "depth-too-deep: none pays": Server(batch=128, depth=3, drafter="ngram", survival=(0.15, 0.03, 0.01)),
    "depth-too-shallow": Server(batch=1, depth=1),
    "beyond-graphs": Server(batch=200, depth=3),
    "beyond-graphs: as configured": Server(
        batch=96, depth=3, engine_time={"graph_limit": 128}, settings={"largest_graph": 128}
    ),
    "eager": Server(batch=8, engine_time=EAGER, settings={"eager": True, "graph_mode": "NONE"}),
    "piecewise": Server(batch=8, engine_time=PIECEWISE, settings={"graph_mode": "PIECEWISE"}),
    "draft-graphs": Server(
        model="qwen3-4b",
        drafter="eagle",
        batch=2,
        depth=7,
        survival=(0.88, 0.76, 0.66, 0.58, 0.5, 0.44, 0.39),
        engine_time=NO_DRAFT_GRAPHS | {"draft_launches": 5.0, "kernel_launch_seconds": 62e-6},  # a slow host
        settings={"draft_graphs": False},
    ),
    "not-drafting": Server(depth=0, seen=NOTHING, settings={"depth": 3, "schedule": ((1, 8, 3), (9, 512, 0))}),
    "not-drafting: n-gram": Server(depth=0, drafter="ngram", seen=NOTHING, settings={"depth": 3}),
    "memory": Server(seen={"kv_share": 0.99, "waiting": 30.0}),
    "memory: preempted": Server(batch=64, seen={"kv_share": 0.95, "preemptions": 60.0, "requests": 50.0}),
    "prompts": Server(prompt_rate=20_000.0),
    "experts": Server(slower=1.5, seen={"distinct_experts": 250.0}),
    "context": Server(survival=(0.6, 0.4, 0.25), seen={"moments": DECAY}),
    "host": Server(batch=32, extra_seconds=0.03, seen={"moments": Server(extra_seconds=0.03).moments(LOADS)}),
    "host: nvidia-smi": Server(
        extra_seconds=0.02, machine=Machine(utilization=0.35, clock_mhz=1900, largest_clock_mhz=1980)
    ),
    "slow-gpu": Server(slower=1.8, machine=parse_machine(NVIDIA_SMI)),
    "slow-gpu: MIG": Server(slower=2.5, machine=Machine(utilization=0.99, mig=True)),
    "sampling": Server(survival=(0.5, 0.25, 0.12), settings={"temperature": 1.2}),
    "random-tokens": Server(survival=(0.4, 0.15, 0.05), seen=GENERATED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_cause_leads(name: str) -> None:
    answer = FAULTS[name].answer()
    cause = name.split(":", maxsplit=1)[0]
    assert answer.diagnosis.status is Status.CAUSE
    assert answer.findings[0].id == cause
    assert answer.findings[0].gain is not None
    assert answer.findings[0].evidence
    assert answer.to_dict()["cause"] == cause
    assert cause not in {each.id for each in answer.diagnosis.not_excluded}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_else_is_named_with_it(name: str) -> None:
    """A fault is one cause; what follows from it is not another."""
    assert [finding.id for finding in FAULTS[name].answer().findings] == [name.split(":", maxsplit=1)[0]]


def test_gain_is_what_the_prices_say() -> None:
    """Steps beyond the largest graph: without a limit, the same server would run as many times faster."""
    fault = FAULTS["beyond-graphs"]
    found = fault.answer().findings[0]
    limited, unlimited = fault.round_seconds(200), Server(engine_time={"graph_limit": None}).round_seconds(200)
    assert found.gain == pytest.approx(limited / unlimited - 1.0, rel=0.01)
    assert found.loss == pytest.approx(1.0 - unlimited / limited, rel=0.01)


# --- healthy servers ---


@settings(max_examples=60, deadline=None)
@given(
    what=st.sampled_from(
        [
            ("qwen3.6-35b-a3b", "h200", 1, "mtp"),
            ("qwen3-30b-a3b", "h100", 1, "eagle"),
            ("qwen3-8b", "h200", 1, "eagle"),
            ("glm-4.5-air", "h200", 2, "mtp"),
            ("qwen3-235b-a22b", "b200", 4, "eagle"),
        ]
    ),
    batch=st.sampled_from([1.0, 3.0, 8.0, 24.0, 64.0]),
    slower=st.floats(0.88, 1.15),
    shift=st.floats(-0.1, 0.08),
    prompt_rate=st.sampled_from([0.0, 300.0]),
)
def test_a_healthy_server_has_no_cause(
    what: tuple[str, str, int, str], batch: float, slower: float, shift: float, prompt_rate: float
) -> None:
    """At the best depth for what it accepts, with times and acceptance that differ as they do between machines."""
    model, gpu, gpus, drafter = what
    plain = Server(model=model, gpu=gpu, gpus=gpus, drafter=drafter, batch=batch)
    survival = plain.pricer.scenario.survival.shifted(shift, 8)
    curve = tuple(float(share) for share in survival.by_depth)
    grid = plain.pricer.with_survival(survival).grid([batch], 8)
    depth = int(Setting.of(plain.pricer.scenario, max_depth=8).best_depths(grid)[0])
    server = Server(
        model=model,
        gpu=gpu,
        gpus=gpus,
        drafter=drafter,
        batch=batch,
        depth=depth,
        survival=curve,
        slower=slower,
        prompt_rate=prompt_rate,
    )
    if depth == 0:
        return  # none pays: that is a cause
    answer = server.answer()
    assert not answer.findings, answer.verdict
    assert answer.diagnosis.status is Status.HEALTHY, answer.verdict
    assert answer.verdict.startswith("Nothing is wrong: ")


def test_steps_slower_by_a_factor_are_not_explained() -> None:
    """A slow GPU and wide routing look alike: neither is named, and the host is excluded."""
    answer = Server(slower=1.8, seen={"moments": Server(slower=1.8).moments(LOADS)}).answer()
    assert answer.diagnosis.status is Status.UNEXPLAINED
    assert {each.id for each in answer.diagnosis.not_excluded} == {"slow-gpu", "experts"}
    assert "do not show why" in answer.verdict


def test_slow_steps_at_one_load_exclude_nothing() -> None:
    answer = Server(slower=1.8).answer()
    assert not answer.findings
    assert {"host", "slow-gpu", "experts"} <= {each.id for each in answer.diagnosis.not_excluded}


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (Server(survival=(0.55, 0.3, 0.15)), "low acceptance alone says nothing of its cause"),
        (Server(survival=(0.55, 0.3, 0.15), settings={"temperature": 0.6}), "such a temperature is usual"),
        (Server(seen=GENERATED), "acceptance is as usual, whatever the prompts are"),
        (Server(seen={"waiting": 5.0, "kv_share": 0.3}), "requests wait for another reason than memory"),
        (Server(seen={"preemptions": 1.0, "kv_share": 0.7, "requests": 5000.0}), "one of many"),
        (Server(batch=200, slower=0.7), "beyond the graph limit by its default, yet as fast as inside"),
        (
            Server(batch=1, survival=(0.0, 0.0, 0.0), seen={"rounds": 2.0, "seconds": 0.02}),
            "two rounds are no evidence",
        ),
    ],
)
def test_no_cause_without_evidence(server: Server, why: str) -> None:
    assert not [finding.id for finding in server.answer().findings], why


# --- what is not known ---


def test_without_model_and_gpu_only_evidence_counts() -> None:
    server = Server(survival=(0.02, 0.0, 0.0))
    answer = answer_of(DoctorRequest(url="http://localhost:8000"), server.observation())
    assert answer.findings[0].id == "drafter-broken"
    assert answer.findings[0].gain is None
    assert any("--model" in sentence for sentence in answer.missing)


def test_a_server_without_speculation_says_what_it_would_gain() -> None:
    plain = Server(depth=0, seen=NOTHING | {"rounds": None, "speculates": False}, settings={"method": None})
    answer = plain.answer()
    assert answer.diagnosis.status is Status.NOT_SPECULATING
    assert "times the tokens/s: --speculative-config" in answer.verdict


def test_an_idle_server() -> None:
    of = Observation(engine="vllm", source="x", generated_tokens_per_second=0.0, running=0.0)
    assert "idle" in answer_of(DoctorRequest(url="http://x"), of).verdict


def test_names_of_gpus() -> None:
    of = Observation(engine="vllm", source="x", settings=ServerSettings(gpu="NVIDIA H200", model="Qwen/Qwen3-8B"))
    assert answer_of(DoctorRequest(url="http://x"), of).to_dict()["gpu"] == "h200"


def test_what_nvidia_smi_prints() -> None:
    assert parse_machine(NVIDIA_SMI) == Machine(utilization=0.99, clock_mhz=700, largest_clock_mhz=1980)
    assert parse_machine("") is None
    unknown = parse_machine("[N/A], [N/A], 1980 MHz, Enabled, Active, Not Active")
    assert unknown == Machine(largest_clock_mhz=1980, mig=True, slowed=True)


# --- on the command line ---

PASTED = """INFO 11-18 01:00:10 [loggers.py:257] Engine 000: Avg prompt throughput: 820.5 tokens/s, Avg generation \
throughput: 1510.2 tokens/s, Running: 16 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: 3.0%
INFO 11-18 01:00:10 [metrics.py:99] SpecDecoding metrics: Mean acceptance length: 2.31, Accepted throughput: 856.00 \
tokens/s, Drafted throughput: 1961.20 tokens/s, Accepted: 8560 tokens, Drafted: 19612 tokens, Per-position acceptance \
rate: 0.680, 0.410, 0.220, Avg Draft acceptance rate: 43.7%
"""
ASKED = ("--model", "Qwen/Qwen3-235B-A22B-FP8", "--gpu", "h200", "--gpus", "4", "--prices", "laws")


def test_pasted_lines() -> None:
    """Qwen3-235B in FP8 on four H200: acceptance and speed as expected."""
    done = ended("doctor", *ASKED, stdin=PASTED)
    assert done.code == 0, done.err
    assert done.out.startswith("Nothing is wrong: 1,510 tokens/s, ")
    assert all(len(line) <= WIDTH for line in done.out.splitlines())
    assert "position 3 accepted" in done.out


def test_pasted_acceptance_alone() -> None:
    line = "Mean acceptance length: 2.31, Per-position acceptance rate: 0.68, 0.41, 0.22"
    done = ended("doctor", *ASKED, stdin=line)
    assert done.code == 0, done.err
    assert done.out.startswith("Acceptance is as usual: accept length 2.31")
    assert "Time per step is not shown" in " ".join(done.out.split())


def test_pasted_lines_of_a_broken_drafter_exit_0(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    broken = PASTED.replace("2.31", "1.03").replace("0.680, 0.410, 0.220", "0.030, 0.000, 0.000")
    log.write_text(broken.replace("Accepted: 8560", "Accepted: 196"))
    answer = payload("doctor", "--log", str(log), *ASKED)
    assert (answer["schema"], answer["status"], answer["cause"]) == ("specmargin.doctor/1", "cause", "drafter-broken")
    assert answer["findings"][0]["loss"] > 0.1
    assert answer["options"]["engine"] == "vllm"
    names = [figure["name"] for figure in answer["figures"]]
    assert names[:4] == ["batch", "tokens_per_second", "round_seconds", "tpot_seconds"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        ([], "", "empty"),
        ([], "hello\n", "no line that says what the engine did"),
        (["--watch"], "x", "--watch reads a server"),
        (["http://127.0.0.1:9", "--seconds", "0.5"], "", "127.0.0.1:9"),
        (["--log", "missing.log"], "", "missing.log"),
    ],
)
def test_what_cannot_be_read(arguments: list[str], stdin: str, said: str) -> None:
    done = ended("doctor", *arguments, stdin=stdin)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", FAULTS)
def test_answers_fit_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(FAULTS[name].answer().blocks())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH


def test_python(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(PASTED)
    answer = specmargin.doctor(log=log, model="Qwen/Qwen3-235B-A22B-FP8", gpu="h200", gpus=4, prices="laws")
    assert str(answer).startswith("Nothing is wrong")
    assert not answer.findings
    assert answer.to_frame()["name"][0] == "batch"


def test_watching_goes_on_while_the_server_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle server is an error of one reading, and a pause of a watch."""
    of = Server().observation()
    readings: Iterator[IdleError | Observation] = iter([IdleError("idle"), of, IdleError("idle"), of])

    def observe(url: str, **options: object) -> Observation:
        found = next(readings)
        if isinstance(found, Observation):
            return found
        raise found

    monkeypatch.setattr("specmargin.verbs.doctor.readings.observe_server", observe)
    request = DoctorRequest(url="http://server:8000", model="qwen3.6-35b-a3b", gpu="h200", prices="laws", watch=True)
    watched = answers(request, silent)
    assert [next(watched).diagnosis.status for _ in range(2)] == [Status.HEALTHY] * 2
    once = answers(request.model_copy(update={"watch": False}), silent)
    readings = iter([IdleError("idle")])
    with pytest.raises(IdleError):
        next(once)


def test_help_shows_what_most_need(capsys: pytest.CaptureFixture[str]) -> None:
    page = ended("doctor", "--help").out
    for option in ("URL", "--log", "--seconds", "--watch", "--model", "--gpu", "--batch", "--json"):
        assert option in page, option


@pytest.mark.parametrize(
    ("engine", "option"),
    [
        ("vllm", '"num_speculative_tokens": 2}'),
        ("sglang", "--speculative-num-steps 3 "),
        ("trtllm", "max_draft_len: 2"),
        ("llamacpp", "--spec-draft-n-max 2"),
    ],
)
def test_fixes_are_in_the_engine_s_words(engine: str, option: str) -> None:
    deep = FAULTS["depth-too-deep"]
    found = replace(deep, seen={"engine": engine}, asked={"engine": engine}).answer().findings[0]
    assert found.id == "depth-too-deep"
    assert option in found.fix
    assert "\n" not in found.fix
