"""`specmargin watch` against a server that responds, restarts, disappears, or runs without Specmargin."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmargin.cli.main import run
from specmargin.errors import EngineError, InputError
from specmargin.live.board import METRICS, Reading
from specmargin.live.readings import ServerReading, interval, parse_metrics, server_reading
from specmargin.live.server import Server, UnreachableError
from specmargin.live.settings_schema import Mode

GAUGES = {"sequences": 8, "goodput_tokens_per_second": 1240, "expected_goodput_tokens_per_second": 1300, "hurdle": 0.21}
GAUGES |= {"expected_acceptance": 0.7, "measured_acceptance": 0.66, "calibration_error": 0.04, "enabled": 1, "mode": 2}


def metrics(steps: int, *, engine: str = "0", **gauges: float) -> str:
    """As vLLM's endpoint writes them, after so many steps of 8 sequences: a third of them draft 0, the others 3."""
    drafting = steps - steps // 3
    counted = {
        "steps": steps,
        "step_seconds": 0.02 * steps,
        "decision_seconds": 0.0001 * steps,
        "verify_positions": 8 * steps + 24 * drafting,
        "draft_tokens": 24 * drafting,
        "accepted_tokens": 12 * drafting,
        "committed_tokens": 8 * steps + 12 * drafting,
        "captured_rounds": 8 * drafting,
    }
    lines = [f'specmargin_{name}_total{{engine="{engine}"}} {value:g}' for name, value in counted.items()]
    lines += [f'specmargin_{name}{{engine="{engine}"}} {value}' for name, value in (GAUGES | gauges).items()]
    lines += [f'specmargin_depth_chosen_total{{depth="0",engine="{engine}"}} {steps // 3}']
    lines += [f'specmargin_depth_chosen_total{{depth="3",engine="{engine}"}} {drafting}']
    lines += [f'specmargin_faults_total{{engine="{engine}",kind="verify decision"}} 2.0']
    labels = f'engine="{engine}",model_name="a \\"b\\", c}}"'
    lines += [f"vllm:num_requests_running{{{labels}}} 8.0", f"vllm:num_requests_waiting{{{labels}}} 3.0"]
    lines += [f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {24 * drafting}"]
    lines += [f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {6 * drafting}"]
    head = "# HELP specmargin_steps_total Steps\n# TYPE specmargin_steps_total counter\n"
    return head + "\n".join(lines) + "\n"


Answer = tuple[int, str]


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections that the test closes


@contextmanager
def serving(answer: Callable[[int], Answer | None]) -> Iterator[str]:
    """`answer`: status and text for the n-th request; None closes the connection."""
    request_numbers = iter(range(1_000_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = answer(next(request_numbers)) if self.path == "/metrics" else (404, "")
            if response is None:
                self.connection.close()
                return
            self.send_response(response[0])
            self.end_headers()
            self.wfile.write(response[1].encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = _Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run("watch", list(arguments)) == 0
    return capsys.readouterr().out


def readings(text: str) -> list[dict[str, Any]]:
    decoder, engines = json.JSONDecoder(), []
    while text.strip():
        value, end = decoder.raw_decode(text.lstrip())
        engines.append(value["engines"][0])
        text = text.lstrip()[end:]
    return engines


# --- a server that responds ---


def test_one_reading_counts_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda _: (200, metrics(300))) as url:
        (reading,) = readings(shown(capsys, url, "--json"))
    assert (reading["engine"], reading["mode"], reading["enabled"], reading["interval_seconds"]) == (
        "0",
        "adaptive",
        True,
        None,
    )
    assert reading["steps_by_depth"] == {"0": 100.0, "3": 200.0}
    assert reading["verify_positions_per_step"] == pytest.approx(8 + 24 * 2 / 3)
    assert reading["verify_positions_per_committed_token"] == pytest.approx((2400 + 4800) / (2400 + 2400))
    assert reading["accepted_share"] == 0.5
    assert reading["decision_share"] == pytest.approx(0.005)
    assert reading["committed_tokens_per_second"] is None  # the time is unknown
    assert reading["counted"]["captured_rounds_total"] == 1600
    assert reading["faults"] == {"verify decision": 2.0}
    assert reading["hurdle"] == 0.21
    assert reading["vllm"]["running"] == 8
    assert reading["vllm"]["accepted_share"] == 0.25


def test_rates_are_differences(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda n: (200, metrics(300 + 30 * n))) as url:
        first, second = readings(shown(capsys, f"{url}/metrics", "--json", "--count", "2", "--interval", "0.1"))
    assert first["interval_seconds"] is None
    assert second["counted"]["steps_total"] == 30
    assert second["steps_by_depth"] == {"0": 10.0, "3": 20.0}
    assert not second["restarted"]
    seconds = second["interval_seconds"]
    assert seconds >= 0.1
    assert second["committed_tokens_per_second"] == pytest.approx((30 * 8 + 20 * 12) / seconds)


def test_the_view_says_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda n: (200, metrics(300 + 30 * n))) as url:
        text = shown(capsys, url, "--count", "2", "--interval", "0.1")
    first, second = text.split("engine 0: ")[1:]
    for part in (
        "adaptive mode, deciding; since its start",
        "8 running, 3 waiting",
        "300, 20 ms each",
        "24.0 per step, 1.50 per committed token",
        "50%",
        "1,240 tokens per second, 1,300 expected (-5%)",
        "0.040 (70% expected, 66% accepted)",
        "0.50% of the time",
        "1,600 rounds",
        "verify decision 2",
    ):
        assert part in first, part
    assert "last 0." in second
    assert "160 rounds" in second
    assert max(map(len, text.splitlines())) <= 100
    bars = [line for line in second.splitlines() if "█" in line]
    assert [line.split()[0] for line in bars] == ["0", "3"]
    assert bars[1].count("█") == 2 * bars[0].count("█") + 1  # 67% and 33% of 32 columns


def test_engines_of_a_data_parallel_server(capsys: pytest.CaptureFixture[str]) -> None:
    both = metrics(30) + metrics(60, engine="1")
    with serving(lambda _: (200, both)) as url:
        assert "engine 1: " in shown(capsys, url, "--once")
        (reading,) = readings(shown(capsys, url, "--json", "--engine", "1"))
        with pytest.raises(EngineError, match="there is no engine '7'; it has 0, 1"):
            run("watch", [url, "--once", "--engine", "7"])
    assert reading["counted"]["steps_total"] == 60


def test_a_plugin_that_is_off_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda _: (200, metrics(30, enabled=0.0))) as url:
        assert "disabled after faults" in shown(capsys, url, "--once")
    wrong = 'specmargin_enabled{engine="0"} 0\nspecmargin_faults_total{engine="0",kind="configuration"} 1\n'
    with serving(lambda _: (200, wrong)) as url:
        assert "disabled, invalid configuration" in shown(capsys, url, "--once")


# --- a server that does not ---


def test_a_server_that_restarts_counts_from_zero(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda n: (200, metrics(300 if n == 0 else 12))) as url:
        _, second = readings(shown(capsys, url, "--json", "--count", "2", "--interval", "0.1"))
        text = shown(capsys, url, "--count", "1")
    assert second["restarted"]
    assert second["counted"]["steps_total"] == 12
    assert second["steps_by_depth"] == {"0": 4.0, "3": 8.0}
    assert second["vllm"]["counted"]["draft_tokens_total"] == 24 * 8
    assert "engine 0" in text


def test_a_server_that_goes_away_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Closed connections, startup and missing metrics are retried; counts continue from the last reading."""
    answers: list[Answer | None] = [(200, metrics(30)), None, (503, ""), (200, "vllm:x 1\n"), (200, metrics(60))]
    with serving(lambda n: answers[n]) as url:
        text = " ".join(shown(capsys, url, "--count", "5", "--interval", "0.1").split())
    assert text.count("retrying. Below: the last reading.") == 3
    assert text.count("engine 0: ") == 5
    assert "returned 503" in text
    with serving(lambda n: answers[n]) as url:
        first, last = readings(shown(capsys, url, "--json", "--count", "5", "--interval", "0.1"))
    assert (first["counted"]["steps_total"], last["counted"]["steps_total"]) == (30, 30)
    assert last["interval_seconds"] > 0.39
    with serving(lambda n: answers[min(n, 1)]) as url:
        with pytest.raises(EngineError, match="no response"):
            run("watch", [url, "--count", "2", "--interval", "0.1"])
        capsys.readouterr()


def test_a_server_that_is_not_there() -> None:
    with serving(lambda _: None) as url:
        pass
    with pytest.raises(UnreachableError, match=r"no response \(connection refused\)"):
        Server.from_address(url).read()
    with (
        serving(lambda _: (200, "")) as url,
        pytest.raises(EngineError, match=r"returned 404 .*is this the server's port"),
    ):
        Server.from_address(f"{url}/elsewhere").read()


def test_a_server_that_never_answers() -> None:
    silent = threading.Event()

    def wait(_: int) -> Answer:
        silent.wait(5.0)
        return 200, ""

    with serving(wait) as url:
        with pytest.raises(UnreachableError, match="timed out"):
            Server.from_address(url, timeout_seconds=0.1).read()
        silent.set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm:x 1\n# HELP specmargin_steps_total Steps\n", "no engine has reported yet"),
        ("python_gc_objects_collected_total 3\n", "no metrics of Specmargin, vLLM"),
        ("<html>hello</html>", "no metrics of Specmargin, vLLM"),
    ],
)
def test_servers_without_specmargin_are_distinguished(text: str, message: str) -> None:
    with pytest.raises(EngineError) as caught:
        server_reading(text, 0.0, "http://here/metrics")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["localhost:8000"], "must begin with http:// or https://, such as http://localhost:8000"),
        (["ftp://x"], "such as http://x"),
        (["http://"], "is not a server address"),
        (["http://h:port"], "the port must be a number in 1..65535"),
        ([], "give the address of the server"),
        (["http://h", "--interval", "0"], "--interval must be at least 0.1, got 0"),
        (["http://h", "--interval", "nan"], "--interval must be a finite number"),
        (["http://h", "--dashboard", "x.json"], "leave out the address"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run("watch", arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the text format ---


def test_the_text_format() -> None:
    text = (
        '# TYPE a counter\na 1\nb{} 2 1700000000\nc{x="1",y="say \\"hi\\", \\\\ and }"} +Inf\n'
        'd{x="a\\nb",} NaN\n\nnot a line at all\ne{x=1} 3\nf{x="1"} three\n  g{ x = "2" } -1.5e-3  \n'
    )
    samples = {sample.name: (dict(sample.labels), sample.value) for sample in parse_metrics(text)}
    assert samples.pop("d")[0] == {"x": "a\nb"}
    assert samples == {
        "a": ({}, 1.0),
        "b": ({}, 2.0),
        "c": ({"x": "1", "y": 'say "hi", \\ and }'}, float("inf")),
        "g": ({"x": "2"}, -0.0015),
    }


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_skipped(text: str) -> None:
    """Every result is a sample with a name and a number, and nothing raises."""
    for page in (text, f'specmargin_steps_total{{engine="{text}"}} 1'):
        assert all(sample.name and isinstance(sample.value, float) for sample in parse_metrics(page))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_labels_round_trip(value: str) -> None:
    written = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    (sample,) = parse_metrics(f'a{{b="{written}",c="d"}} 1')
    assert sample.labels == {"b": value, "c": "d"}


counts = st.lists(st.integers(0, 10**6), min_size=2, max_size=2)


@given(counts, counts)
def test_intervals_never_count_backwards(steps: list[int], drafts: list[int]) -> None:
    def reading(i: int) -> ServerReading:
        values = {"steps_total": float(steps[i]), "draft_tokens_total": float(drafts[i])}
        engine = Reading(values=values, steps_by_depth={2: float(steps[i])}, faults={})
        return ServerReading(at_seconds=float(i), engines={"0": engine}, vllm={})

    difference = interval("0", reading(1), reading(0))
    assert all(value >= 0 for value in difference.counted.values())
    assert difference.restarted == (steps[1] < steps[0] or drafts[1] < drafts[0])
    assert sum(difference.depth_share.values()) == pytest.approx(1.0 if difference.steps_by_depth[2] else 0.0)
    assert difference.steps_by_depth[2] == (steps[1] if difference.restarted else steps[1] - steps[0])


# --- the dashboard ---


def test_the_dashboard_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "board.json"
    assert "import it in Grafana" in shown(capsys, "--dashboard", str(file))
    assert json.loads(file.read_text())["title"]
    with pytest.raises(InputError, match="--force"):
        run("watch", ["--dashboard", str(file)])
    assert run("watch", ["--dashboard", str(file), "--force"]) == 0


def test_the_dashboard_names_every_mode() -> None:
    board = json.loads(resources.files("specmargin.live").joinpath("grafana.json").read_text(encoding="utf-8"))
    (panel,) = [
        panel for panel in board["panels"] if any("specmargin_mode" in target["expr"] for target in panel["targets"])
    ]
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert {code: value["text"] for code, value in options.items()} == {str(i): str(m) for i, m in enumerate(Mode)}


def test_the_dashboard_shows_every_metric(tmp_path: Path) -> None:
    """And no others; the data source is a variable, and panels do not overlap."""
    file = tmp_path / "board.json"
    assert run("watch", ["--dashboard", str(file)]) == 0
    board = json.loads(file.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for text in expressions for name in re.findall(r"\bspecmargin_(\w+)", text)}
    assert names == {metric.name for metric in METRICS} | {"depth_chosen_total", "faults_total"}
    counters = {name for name in names if name.endswith("_total")}
    assert all(re.search(rf"(rate|increase)\(specmargin_{name}\{{", " ".join(expressions)) for name in counters)
    assert all(text.count('{instance=~"$instance", engine=~"$engine"}') >= 1 for text in expressions)
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "instance", "engine"}
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in board["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
