"""Files that are made to exhaust the server: each is refused in a sentence, or read within the stated memory."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import polars as pl
import pytest

from specmargin.errors import InputError
from specmargin.show.explorer import uploads

pytestmark = pytest.mark.slow
MOST_SERVER_BYTES = 1_500_000_000  # docs/reference/figures.md


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[str, int]]:
    """A server in a process of its own, whose memory is its own: its address and its process."""
    command = [sys.executable, "-m", "specmargin.cli.main", "explore", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.findall(r"http://\S+", line)))
        yield address.rstrip("/"), server.pid
    finally:
        server.terminate()
        server.communicate(timeout=20)


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def routing(*, experts: int = 4, layers: int = 1, run: int = 2, categories: int = 1) -> bytes:
    def zeros(count: int) -> str:
        return base64.b64encode(zlib.compress(bytes(min(count, 1 << 22)), 9)).decode()

    curve = {"positions": [1], "mean": [1.0], "standard_error": [0.0]}
    category = {
        "rounds": 1,
        "positions": 1,
        "requests": 1,
        "popularity": zeros(2 * layers * experts),
        "hit_of_one": zeros(2 * layers * experts),
        "hit_of_runs": zeros(layers * experts),
        "repulsion": [[0.0] * 6] * 2,
        "overlap_by_lag": [[1.0] * layers],
        "depth": curve,
        "width": curve,
        "decay_by_layer": [1.0] * layers,
    }
    file = {"schema": "specmargin.routing/1", "name": "x", "experts": experts, "experts_per_token": 1}
    file |= {"layers": layers, "longest_run": run, "knots": [1, run], "provenance": "made"}
    return json.dumps(file | {"categories": {f"c{i}": category for i in range(categories)}}).encode()


def parquet(rows: int, **columns: pl.Expr) -> bytes:
    names = {name: pl.repeat(name[0], rows) for name in ("model", "speculator", "config", "category")}
    numbers = {name: pl.repeat(0, rows) for name in ("turn", "round_idx", "accept", "acc0")}
    made = names | numbers | {"prompt_idx": pl.arange(0, rows)} | columns
    table = pl.select([values.alias(name) for name, values in made.items()])
    written = io.BytesIO()
    table.write_parquet(written)
    return written.getvalue()


_ONE = b"commits,category\n"
#: Kind, name, content, and what the refusal says; "" where the file is read after all.
HOSTILE: list[tuple[str, str, bytes, str]] = [
    ("routing", "a.routing.json", routing(run=10**8), "at most 2,000,000 probabilities"),
    ("routing", "b.routing.json", routing(experts=10**9), "probabilities"),
    ("routing", "c.routing.json", routing(layers=10**5, experts=100), "probabilities"),
    ("routing", "d.routing.json", routing(categories=500), "500 categories"),
    ("routing", "e.routing.json", b"[" * 4_000_000, ""),
    ("routing", "f.routing.json", b'{"knots":[' + b"1," * 3_900_000 + b"1]}", ""),
    ("routing", "g.routing.json", b" " * (9 << 20), "8 MB"),
    ("config", "h.json", b'{"a":' * 300_000, ""),
    ("config", "i.json", json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 10**9}).encode(), ""),
    ("acceptance", "j.csv", _ONE + b"2,a\n" * 7_500_000, "7,500,001 lines"),
    ("acceptance", "k.csv", _ONE + b"1000000000,a\n", "at most 64"),
    ("acceptance", "l.csv", _ONE + b"".join(b"2,c%d\n" % i for i in range(100_000)), "100,000 categories"),
    ("acceptance", "m.csv", b",".join(b"a%d" % i for i in range(200_000)) + b",commits\n", ""),
    ("acceptance", "n.csv", b"commits\n" + b"," * (20 << 20), "values"),
    ("acceptance", "o.jsonl", b'{"per_step_drafted":[' + b"1," * 2_000_000 + b'1],"per_step_accepted":[0]}', ""),
    ("acceptance", "p.jsonl", b'{"per_step_drafted":[1000000000],"per_step_accepted":[0]}', "at most 64"),
    ("acceptance", "q.acceptance.json", b"[" + b"0," * 3_900_000 + b"0]", ""),
    ("acceptance", "r.parquet", parquet(2_000_000), "2,000,000 rounds"),
    ("acceptance", "s.parquet", parquet(2_000, category=pl.repeat("k" * 20_000, 2_000)), "20,000 characters"),
    ("acceptance", "t.parquet", parquet(2_000, accept=pl.repeat([0] * 5_000, 2_000)), "holds lists"),
]


def test_hostile_files_leave_the_server_small_and_answering(process: tuple[str, int]) -> None:
    """Twenty files, four at a time, while another visitor asks for a plan."""
    address, pid = process

    def sent(number: int) -> httpx.Response:
        kind, name, body, _ = HOSTILE[number]
        return httpx.post(f"{address}/api/uploads/{kind}", params={"name": name}, content=body, timeout=240)

    assert len(HOSTILE) == 20
    longest = 0.0
    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(sent, number) for number in range(len(HOSTILE))]
        while not all(reply.done() for reply in replies):
            began = time.monotonic()
            assert httpx.get(f"{address}/api/plan", timeout=120).status_code == 200
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.2)
    for (_, name, _, said), reply in zip(HOSTILE, (each.result() for each in replies), strict=True):
        assert reply.status_code in (400, 413, 422), (name, reply.text[:200])
        assert said in reply.json()["error"], name
    assert peak_bytes(pid) < MOST_SERVER_BYTES
    assert longest < 60.0  # the whole of it takes longer where a file blocks the server


def test_accepted_files_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read pushes the oldest out; a link to that says to drop it again, and its results are forgotten."""
    monkeypatch.setattr(uploads, "MOST_NUMBERS", 3 * 2 * 4)
    forgotten: list[bool] = []
    kept = uploads.Uploads(lambda: forgotten.append(True))
    added = [kept.add("routing", f"{name}.json", routing().replace(b"made", name.encode())) for name in "abcd"]
    assert [each.numbers for each in added] == [8] * 4
    assert forgotten == [True]
    with pytest.raises(InputError, match="drop it on the page again"):
        kept.find(added[0].id, "routing")
    assert kept.find(added[1].id, "routing") == added[1]
    kept.close()
