"""Engines' own metrics: what `watch` shows of SGLang and TensorRT-LLM, and curves from running servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.acceptance.schema import read_acceptance
from specmargin.cli.main import run
from specmargin.errors import AcceptanceError, EngineError
from specmargin.live.engine_metrics import (
    ENGINES,
    EngineReading,
    acceptance_of,
    engine_reading,
    read_engine,
    tokens_per_second,
)
from specmargin.live.server import Server
from tests.sglang_source import source

SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 12.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 3.0
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.75
sglang:spec_num_steps{model_name="m",tp_rank="0"} 3.0
sglang:generation_tokens_total{model_name="m"} 40000.0
sglang:spec_verify_calls_total{model_name="m"} 15000.0
"""
TRTLLM = """trtllm_num_requests_running{engine_type="trtllm"} 5.0
trtllm_num_requests_waiting{engine_type="trtllm"} 1.0
trtllm_spec_decode_drafted_tokens_total{token_position="0"} 1000.0
trtllm_spec_decode_drafted_tokens_total{token_position="1"} 800.0
trtllm_spec_decode_accepted_tokens_total{token_position="0"} 700.0
trtllm_spec_decode_accepted_tokens_total{token_position="1"} 400.0
"""
VLLM = """vllm:num_requests_running{engine="0"} 4.0
vllm:spec_decode_num_drafts_total{engine="0"} 1000.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 780.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 580.0
vllm:spec_decode_num_drafts_total{engine="1"} 1000.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 820.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="1"} 620.0
"""


@contextmanager
def serving(pages: dict[str, str] | Callable[[str], str | None]) -> Iterator[str]:
    """By path; None is a page that the server does not have."""
    page = pages.get if isinstance(pages, dict) else pages

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page(self.path)
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _read(text: str) -> EngineReading:
    reading = engine_reading(text, 0.0, "http://server/metrics")
    assert reading is not None
    return reading


def test_sglang_has_a_mean_length_at_a_known_depth() -> None:
    reading = _read(SGLANG)
    assert (reading.engine, reading.running, reading.waiting, reading.depth) == ("sglang", 12.0, 3.0, 3.0)
    profile = acceptance_of(reading, "mine")
    curve = profile.categories["all"].survival
    assert sum(curve) == pytest.approx(1.75, abs=1e-6)
    assert curve[1] / curve[0] == pytest.approx(curve[0], abs=1e-6)  # the same acceptance at every position
    assert profile.assumed
    assert str(profile.survival("all").source).startswith("assumed: ")


def test_ranks_share_their_requests_and_replicas_do_not() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{replica}",tp_rank="{rank}"}} {5 + replica}'
        for replica in (0, 1)
        for rank in (0, 1, 2)
    ]
    assert _read("\n".join(lines)).running == 11.0


def test_counters_by_position_make_a_measured_curve_over_all_ranks() -> None:
    vllm, trtllm = (acceptance_of(_read(text), "mine") for text in (VLLM, TRTLLM))
    assert vllm.categories["all"].survival == pytest.approx([0.8, 0.6])
    assert vllm.categories["all"].rounds == 2000
    assert trtllm.categories["all"].survival == pytest.approx([0.7, 0.5])
    assert not vllm.assumed
    assert str(trtllm.survival("all").source).startswith("measured: ")


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.integers(1, 10**6), st.sampled_from(["vllm", "trtllm"])
)
def test_any_counters_make_a_falling_curve(shares: list[float], rounds: int, engine: str) -> None:
    names, lines = ENGINES[engine], []
    for position, share in enumerate(shares):
        label = f'{{{names.position}="{position}"}}'
        lines.append(f"{names.prefix}{names.by_position['accepted'][0]}{label} {share * rounds}")
        if "drafted" in names.by_position:
            lines.append(f"{names.prefix}{names.by_position['drafted'][0]}{label} {rounds}")
    if "drafts" in names.counters:
        lines.append(f"{names.prefix}{names.counters['drafts'][0]} {rounds}")
    curve = acceptance_of(_read("\n".join(lines)), "mine").survival("all").by_depth
    assert curve[0] == pytest.approx(shares[0])
    assert all(deeper <= shallower for shallower, deeper in pairwise(curve))


@given(st.floats(1.0, 9.0), st.integers(1, 8))
def test_any_mean_length_makes_a_curve_with_that_mean(length: float, depth: int) -> None:
    text = f"sglang:spec_accept_length {length}\nsglang:spec_num_steps {depth}\n"
    curve = acceptance_of(_read(text), "mine").categories["all"].survival
    assert sum(curve) == pytest.approx(min(length - 1.0, depth), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang:num_running_reqs 3", "SGLang reports no accepted tokens by position, .*--speculative-algorithm"),
        ("sglang:spec_accept_length 2.5", "nor an accepted length with its number of steps"),
        ("vllm:num_requests_running 3", "vLLM reports no .*--speculative-config"),
        ("trtllm_num_requests_running 3", "TensorRT-LLM reports no .*return_perf_metrics"),
    ],
)
def test_metrics_that_do_not_suffice_get_one_sentence(text: str, words: str) -> None:
    with pytest.raises(AcceptanceError, match=words):
        acceptance_of(_read(text), "mine")


def test_sglang_itself_has_these_names() -> None:
    text = source("srt/observability/metrics_collector.py").read_text(encoding="utf-8")
    names = ENGINES["sglang"]
    kinds = (names.gauges, names.counters, names.histograms)
    wanted = [name.partition("{")[0] for kind in kinds for several in kind.values() for name in several]
    assert [name for name in wanted if f'"{names.prefix}{name}"' not in text] == []


def test_trtllm_has_its_metrics_on_another_page() -> None:
    with serving({"/metrics": '[{"iter": 1}]', "/prometheus/metrics": TRTLLM}) as url:
        for address in (url, f"{url}/metrics", f"{url}/prometheus/metrics"):
            assert read_engine(Server.from_address(address)).engine == "trtllm"


def test_watch_shows_engines_without_the_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": SGLANG}) as url:
        run("watch", [url, "--once"])
        shown = capsys.readouterr().out
        run("watch", [url, "--count", "2", "--interval", "0.1", "--json"])
    assert "SGLang, its own metrics" in shown
    assert "12 running, 3 waiting" in shown
    assert "2.75 tokens per round" in shown
    answers = capsys.readouterr().out.replace("}\n{", "}\x00{").split("\x00")
    last = json.loads(answers[-1])
    assert (last["engine"], last["accept_length"], last["depth"]) == ("sglang", 2.75, 3.0)
    assert last["generated_tokens_per_second"] == 0.0


def test_watch_shows_stock_vllm_over_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """Since the start 2000 rounds with 0.8 and 0.6; since the reading before 1000 with 0.4 and 0.2."""
    first = VLLM + 'vllm:generation_tokens_total{engine="0"} 1000\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
    later = first.replace('tokens_total{engine="0"} 1000', 'tokens_total{engine="0"} 2600')
    later = later.replace('drafts_total{engine="0"} 1000.0', 'drafts_total{engine="0"} 2000.0')
    later = later.replace(" 780.0", " 1180.0").replace(" 580.0", " 780.0")
    pages = iter([first, first, later, first, later])
    with serving(lambda path: next(pages) if path == "/metrics" else None) as url:
        run("watch", [url, "--count", "2", "--interval", "0.1"])
        shown = capsys.readouterr().out.split("its own metrics")[-1]
        run("watch", [url, "--count", "1", "--json"])
    assert "KV cache" in shown
    assert "25% used" in shown
    assert "67%, 47%" in shown  # since the start
    assert "40%, 20%" in shown  # since the reading before
    assert "1.60 since the last reading" in shown
    answer = json.loads(capsys.readouterr().out)
    assert (answer["engine"], answer["interval"], answer["kv_share"]) == ("vllm", None, 0.25)


def test_watch_shows_speculation_of_llamacpp(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(
        {
            "/metrics": VLLM.replace("vllm:num_requests_running", "vllm:requests_processing").replace(
                "vllm:", "llamacpp:"
            )
        }
    ) as url:
        run("watch", [url, "--once"])
    shown = capsys.readouterr().out
    assert "llama.cpp, its own metrics" in shown
    assert "80%, 60%" in shown


def test_a_plug_in_that_has_not_reported_yet_is_not_stock_vllm() -> None:
    with serving({"/metrics": f"# HELP specmargin_steps_total Steps\n{VLLM}"}) as url:
        with pytest.raises(EngineError, match="no engine has reported yet"):
            run("watch", [url, "--once"])
        assert read_engine(Server.from_address(url)).plug_in


def test_engine_is_of_the_plug_in() -> None:
    with serving({"/metrics": VLLM}) as url, pytest.raises(EngineError, match="--engine needs the plug-in"):
        run("watch", [url, "--once", "--engine", "1"])


def test_a_restart_has_no_rate() -> None:
    before, now = _read(SGLANG), _read(SGLANG.replace("40000.0", "100.0"))
    now.at_seconds = 2.0
    assert tokens_per_second(now, before) is None


def test_profile_acceptance_reads_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.acceptance.json"
    with serving({"/metrics": VLLM}) as url:
        run("profile", ["acceptance", "--metrics", url, "-o", str(file)])
    assert "survival: 0.800, 0.600" in capsys.readouterr().out
    assert read_acceptance(file).survival("all").by_depth.tolist() == pytest.approx([0.8, 0.6])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--metrics", "http://localhost:1", "bank"], "--metrics reads a server: leave out banks"),
        ([], "give a bank of rounds, or the address of a server"),
        (["--metrics", "http://127.0.0.1:1"], "no response"),
        (["--metrics", "nowhere"], "is not a server address"),
    ],
)
def test_bad_requests_get_one_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        run("profile", ["acceptance", *arguments])


def test_a_server_of_another_kind_gets_one_sentence() -> None:
    with serving({"/metrics": "other_metric 1"}) as url, pytest.raises(EngineError, match=r"404|no metrics of vLLM"):
        read_engine(Server.from_address(url))
