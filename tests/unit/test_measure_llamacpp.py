"""`measure llamacpp`: recorded steps of a real llama-server are predicted; what can be wrong is one sentence."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from specmargin.architecture.precision import precision_named
from specmargin.catalog.lookup import find_model
from specmargin.errors import InputError
from specmargin.measure import fit
from specmargin.measure.fit import fit_steps, steps_of
from specmargin.measure.llamacpp import order
from specmargin.measure.llamacpp.bench import point_of
from specmargin.measure.llamacpp.gguf import read_gguf
from specmargin.measure.llamacpp.launch import Program, ProgramKind
from specmargin.measure.llamacpp.server import Server, Timings
from specmargin.measure.llamacpp.steps import rounds_of
from tests.command_line import run
from tests.llamacpp_server import MEASURED, PAGES, RECORDED, FakeServer, measured, served

CONFIG = str(MEASURED / "config.json")
FORMS = ("q8_0", "q4_0")


# --- the fit, on recorded steps of two quantisations ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("left_out", [(2, 5, 11), (3, 6, 9), (1, 7, 13), (4, 8, 14)])
def test_positions_that_were_left_out_are_predicted_within_a_tenth(form: str, left_out: tuple[int, ...]) -> None:
    model = find_model(CONFIG, weights=precision_named(form))
    rows = [row | {"seconds": row["low_seconds"]} for row in measured(form)["rows"] if row["batch"] == 1]
    steps = steps_of(rows, {}, model)
    used = ~np.isin(steps.depth, left_out)
    found = fit_steps(steps, used)
    errors = np.abs(found.seconds(steps) / steps.seconds - 1.0)[~used]
    assert np.median(errors) < 0.10
    assert errors.max() < 0.20


def test_a_prompt_wants_one_logit_and_is_priced_below_a_verify_step() -> None:
    model = find_model(CONFIG, weights=precision_named("q8_0"))
    row = next(row for row in measured("q8_0")["rows"] if row["depth"] == 15)
    prompt, verify = (steps_of([row | {"outputs": outputs}], {}, model) for outputs in (1, None))
    bytes_of = [sum(w.count * np.broadcast_to(w.bytes, (1,))[0] for w in steps.works) for steps in (prompt, verify)]
    assert bytes_of[0] < bytes_of[1]
    assert sum(w.count for w in prompt.works) >= sum(w.count for w in verify.works)


def test_rounds_have_the_depth_and_the_time_between_their_tokens() -> None:
    stream = [Timings.of(chunk["timings"]) for chunk in PAGES["stream"]]
    rounds = list(rounds_of(stream))
    assert rounds[0][0] == 15
    assert [depth for depth, _ in rounds[-3:]] == [2, 1, 0]  # fewer as the end of the answer comes near
    assert all(seconds > 0 for _, seconds in rounds)


def test_lines_of_llama_bench_are_points() -> None:
    tests = [json.loads(line) for line in (MEASURED / "bench-q8_0.jsonl").read_text(encoding="utf-8").splitlines()]
    points = [point_of(test) for test in tests]
    assert [point.depth for point, _ in points] == [*range(1, 16), 0]
    assert all(min(seconds) > 1e-3 and max(seconds) < 3e-2 for _, seconds in points)
    with pytest.raises(InputError, match="samples_ns"):
        point_of({name: value for name, value in tests[0].items() if name != "samples_ns"})


# --- the command, on a server with recorded answers ---


def _measure(url: str, out: Path, *more: str, code: int = 0) -> Any:
    with patch("specmargin.measure.fit._RESAMPLES", 2):
        return run("measure", "llamacpp", CONFIG, "--weights", "q8_0", "--url", url, "-o", str(out), *more, code=code)


def test_a_price_file_from_a_server_is_read_by_plan(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    with served(FakeServer()) as url:
        _measure(url, out, "--contexts", "256", "--repeats", "2")
    file = json.loads(out.read_text(encoding="utf-8"))
    assert file["conditions"]["engine"] == "llama.cpp b11434-unknown (llama-server)"
    assert {row["outputs"] for row in file["rows"]} == {1, None}
    plan = run(
        *("plan", CONFIG, "--weights", "q8_0", "--gpu", "m4-max", "--engine", "llamacpp", "--drafter", "free"),
        *("--acceptance", "0.7", "--batch", "1", "--prices", str(out), "--json"),
    )
    assert "mine.json" in plan.out


def test_a_measurement_goes_on_where_it_ended(tmp_path: Path) -> None:
    fake, out = FakeServer(), tmp_path / "mine.json"
    with served(fake) as url:
        _measure(url, out, "--contexts", "256", "--repeats", "2")
        before = fake.requests
        _measure(url, out, "--contexts", "256", "--repeats", "2")
        assert fake.requests == before
        _measure(url, out, "--contexts", "256", "--repeats", "3")
        assert fake.requests > before


def test_a_server_that_drafts_adds_the_time_of_its_drafter(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    with served(FakeServer()) as url:
        _measure(url, out, "--contexts", "256", "--repeats", "2")
    with served(FakeServer(drafts=True)) as url:
        _measure(url, out, "--contexts", "256", "--repeats", "2")
    drafter = json.loads(out.read_text(encoding="utf-8"))["drafter"]
    assert drafter["first_seconds"] + drafter["later_seconds"] > 0


# --- what can be wrong ---


def test_bad_servers_are_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert "nothing answers there" in _measure(url, out, code=2).err
    assert "not a server's address" in _measure("localhost:8080", out, code=2).err
    with served(FakeServer(without=("build_info",))) as url:
        assert "its /props lacks build_info" in _measure(url, out, code=2).err
    with served(FakeServer(without=("build_info", "total_slots", "default_generation_settings"))) as url:
        assert "is not llama-server" in _measure(url, out, code=2).err
    with served(FakeServer(without=("prompt_ms",))) as url:
        assert "lack timings.prompt_ms" in _measure(url, out, code=2).err
    with served(FakeServer(delay_seconds=1.0)) as url:
        assert "no answer within 0.2 s" in _measure(url, out, "--patience", "0.2", code=2).err
    with served(FakeServer()) as url:
        assert "start it with -np 64" in _measure(url, out, "--batches", "64", code=2).err
        assert "at least 12 positions" in _measure(url, out, "--positions", "1,2,4", code=2).err
        assert "a larger -c" in _measure(url, out, "--contexts", "100k", code=2).err
        wrong = run("measure", "llamacpp", "qwen3-4b", "--url", url, "-o", str(out), code=2)
        assert "GB of weights" in wrong.err
    assert not out.exists()


def test_one_slot_is_enough_for_a_price_file(tmp_path: Path) -> None:
    with served(FakeServer()) as url:
        _measure(url, tmp_path / "one.json", "--contexts", "256", "--repeats", "2", "--batches", "1")
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))["evidence"]["points"] == 16


def test_points_that_a_fit_needs_are_those_of_the_fit() -> None:
    assert order.MIN_POINTS == fit.MIN_POINTS


def test_the_request_names_what_is_missing(tmp_path: Path) -> None:
    given = ("measure", "llamacpp", CONFIG, "-o", str(tmp_path / "x.json"))
    assert "either --url" in run(*given, code=2).err
    assert "--model-file" in run(*given, "--binary", "/bin/true", code=2).err


def _program(folder: Path, text: Path | None, *, version: str = "") -> str:
    path = folder / "program"
    shown = "" if text is None else f'cat "{text}"'
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; else :; {shown}\nfi\n')
    path.chmod(0o755)
    return str(path)


def test_programs_are_known_by_their_help(tmp_path: Path) -> None:
    said = "version: 0.6.0-dev (build 11434, commit unknown)"
    bench = Program.at(_program(tmp_path, RECORDED / "llama-bench-help.txt", version=said))
    assert (bench.kind, bench.build) == (ProgramKind.BENCH, "b11434")
    server = Program.at(_program(tmp_path, RECORDED / "llama-server-help.txt", version="version: 5200 (0a1b2c3)"))
    assert (server.kind, server.build) == (ProgramKind.SERVER, "b5200")
    with pytest.raises(InputError, match="is not llama-bench or llama-server"):
        Program.at(_program(tmp_path, None))
    old = tmp_path / "old.txt"
    old.write_text("-p, --n-prompt <n>\n-n, --n-gen <n>\n")
    with pytest.raises(InputError, match="no --n-depth"):
        Program.at(_program(tmp_path, old))
    with pytest.raises(InputError, match="cannot be run"):
        Program.at(str(tmp_path / "nowhere"))


def _gguf(path: Path, *, data: int = 64) -> Path:
    """One tensor of 2 × 8 in F32."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    head += text("w") + struct.pack("<IQQIQ", 2, 8, 2, 0, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(data))
    return path


def test_cut_off_files_are_found_before_anything_starts(tmp_path: Path) -> None:
    whole = _gguf(tmp_path / "whole.gguf")
    assert read_gguf(whole).weight_bytes == 64
    assert read_gguf(whole).architecture == "llama"
    with pytest.raises(InputError, match=r"is cut off: its tensors end at byte [\d,]+, and the file has"):
        read_gguf(_gguf(tmp_path / "short.gguf", data=60))
    size = whole.stat().st_size - 64
    for length in (3, 10, 30, size // 2):
        short = tmp_path / "header.gguf"
        short.write_bytes(whole.read_bytes()[:length])
        with pytest.raises(InputError, match=r"cut off|not a GGUF file"):
            read_gguf(short)
    (tmp_path / "x.gguf").write_text("hello, this is no model")
    with pytest.raises(InputError, match="not a GGUF file"):
        read_gguf(tmp_path / "x.gguf")
    with pytest.raises(InputError, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")


def test_an_address_is_kept_without_its_last_slash() -> None:
    assert Server.at("http://localhost:8080/").url == "http://localhost:8080"
