"""The API: the numbers of the command line, clear refusals, and nothing that a page should not be able to do."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from specmargin.catalog.lookup import find_model
from specmargin.cli.main import run
from specmargin.errors import InputError
from specmargin.show.explorer.gallery import GALLERY
from specmargin.show.explorer.guard import POLICY
from specmargin.show.explorer.schema import Query, refuse_files
from specmargin.show.explorer.uploads import LIMITS
from specmargin.verbs import find_verb
from tests.command_line import payload
from tests.explorer.conftest import running

SIMULATED = ("day", "policies")  # their charts carry their own rows
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


_OF_THE_COMMAND = ("version", "options", "survival")


def planned(*arguments: str, batch: int = 16) -> Any:
    """What the command line answers at the page's batch, or for a load."""
    loaded = any(name in arguments for name in ("--concurrency", "--qps", "--at-batch"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run("plan", [*arguments, *([] if loaded else ["--at-batch", str(batch)]), "--json"])
    # Release, options and survival describe the command; the page has its own address for that.
    return {key: value for key, value in json.loads(out.getvalue()).items() if key not in _OF_THE_COMMAND}


def upload(client: httpx.Client, kind: str, body: bytes, name: str = "config.json", **more: str) -> httpx.Response:
    return client.post(f"/api/uploads/{kind}", params={"name": name, **more}, content=body)


# --- the same numbers ---


def test_moving_controls_back_and_forth_leaves_nothing_behind(client: httpx.Client) -> None:
    """What was priced is kept from move to move: the numbers after them are those of a plan made from scratch."""
    moves = [("1024", "0.8"), ("32768", "0.8"), ("32768", "0.5"), ("128", "0.5"), ("1024", "0.8")]
    for context, acceptance in moves:
        arguments = ("qwen3.6-35b-a3b", "--gpu", "h200", "--context", context, "--acceptance", acceptance)
        plan = client.get("/api/plan", params={"context": context, "acceptance": acceptance}).json()
        assert plan == planned(*arguments)


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ({}, ["qwen3.6-35b-a3b", "--gpu", "h200"]),
        (
            {"model": "deepseek-v3", "gpus": "8", "parallel": "ep", "acceptance": "0.82", "prices": "laws"},
            [
                "deepseek-v3",
                "--gpu",
                "h200",
                "--gpus",
                "8",
                "--parallel",
                "ep",
                "--acceptance",
                "0.82",
                "--prices",
                "laws",
            ],
        ),
        (
            {"model": "gpt-oss-20b", "gpu": "b200", "engine": "sglang", "drafter": "eagle", "context": "8192"},
            ["gpt-oss-20b", "--gpu", "b200", "--engine", "sglang", "--drafter", "eagle", "--context", "8192"],
        ),
        (
            {"gpu": "mi300x", "routing": "qwen3.6-35b-a3b:coding", "acceptance": "0.7,0.5,0.3", "depth": "4"},
            [
                *("qwen3.6-35b-a3b", "--gpu", "mi300x", "--routing", "qwen3.6-35b-a3b:coding"),
                *("--acceptance", "0.7,0.5,0.3", "--depth", "4"),
            ],
        ),
    ],
)
def test_numbers_are_those_of_plan_json(client: httpx.Client, query: dict[str, str], arguments: list[str]) -> None:
    expected = planned(*arguments)
    assert client.get("/api/plan", params=query).json() == expected
    reply = client.get("/api/view", params={**query, "batch": "16", "show": "speedup"}).json()
    view = reply["answers"][0] | {"figures": reply["figures"]}
    assert view["plan"] == expected
    row = next(row for row in expected["rows"] if row["batch"] == 16)
    for key in ("depth", "speedup", "hurdle", "goodput_tokens_per_second", "break_even_acceptance", "distinct_experts"):
        assert view["here"][key] == row[key]
    drawn = {point["batch"]: point for point in view["figures"][0]["tables"]["best"]}
    assert drawn[16]["depth"] == row["depth"]
    assert drawn[16]["speedup"] == pytest.approx(row["speedup"], rel=1e-3)


def test_a_dropped_config_is_planned_as_the_command_line_plans_it(client: httpx.Client, tmp_path: Any) -> None:
    reply = upload(client, "config", json.dumps(CONFIG).encode(), "tiny-moe.json")
    assert reply.status_code == 201
    assert "4 of 64 experts per token" in reply.json()["summary"]
    folder = tmp_path / "tiny-moe"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    theirs = client.get("/api/plan", params={"model": f"upload:{reply.json()['id']}", "gpu": "l40s"}).json()
    ours = planned(str(folder), "--gpu", "l40s")
    assert {key: value for key, value in theirs.items() if key != "sources"} == {
        key: value for key, value in ours.items() if key != "sources"
    }


def test_every_figure_answers_for_mixture_and_dense(client: httpx.Client) -> None:
    names = ",".join(name for name, entry in GALLERY.items() if not entry.wait)
    for model in ("qwen3-30b-a3b", "qwen3.6-27b"):
        figures = client.get("/api/view", params={"model": model, "prices": "laws", "show": names}).json()["figures"]
        for figure in figures:
            assert figure.get("reason") or ((figure["tables"] or figure["name"] in SIMULATED) and figure["structure"])


def test_structures_are_sent_once(client: httpx.Client) -> None:
    first = client.get("/api/view", params={"show": "ledger"}).json()["figures"][0]
    again = client.get("/api/view", params={"show": "ledger", "have": first["key"], "acceptance": "0.5"}).json()[
        "figures"
    ][0]
    assert first["structure"] is not None and again["structure"] is None
    assert again["key"] == first["key"]


@pytest.mark.parametrize("ending", ["png", "svg", "csv", "json"])
def test_downloads(client: httpx.Client, ending: str) -> None:
    reply = client.get(f"/api/figures/ledger.{ending}", params={"theme": "dark"})
    assert reply.status_code == 200
    assert "attachment" in reply.headers["content-disposition"]
    start = {"png": b"\x89PNG", "svg": b"<svg", "csv": b"table,", "json": b"{"}[ending]
    assert reply.content.startswith(start)


# --- refusals ---


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"model": "/etc/passwd"}, "neither a bundled model nor"),
        ({"model": "../../secret.json"}, "neither a bundled model nor"),
        ({"gpu": "/tmp/mine.toml"}, "not a bundled GPU"),
        ({"gpu": "h20O"}, "nearest: h20"),
        ({"drafter": "eagle:/etc/passwd"}, "not understood"),
        ({"acceptance": "/etc/passwd"}, "not understood"),
        ({"routing": "/etc/passwd"}, "unknown routing"),
        ({"prices": "/etc/passwd"}, "unknown prices"),
        ({"engine": "tgi"}, "unknown engine"),
        ({"context": "-1"}, "Context must be at least 0, got -1"),
        ({"batch": "many"}, "Batch must be a whole number, got 'many'"),
        ({"colour": "red"}, "Colour is not a known field"),
    ],
)
def test_what_cannot_be_asked_is_said_with_its_field(client: httpx.Client, query: dict[str, str], said: str) -> None:
    reply = client.get("/api/plan", params=query)
    assert reply.status_code == 422
    assert said in reply.json()["error"]
    assert reply.json()["field"] == next(iter(query))


def test_a_scenario_that_cannot_be_is_refused_in_a_sentence(client: httpx.Client) -> None:
    reply = client.get("/api/plan", params={"model": "deepseek-v3", "gpus": "1"})
    assert reply.status_code == 400
    assert "Traceback" not in reply.text
    view = client.get("/api/view", params={"model": "deepseek-v3", "gpus": "1"}).json()["answers"][0]
    assert view["refused"] == reply.json()["error"]
    assert view["gpus"] == 8
    assert "8 GPUs" in view["refused"] and "--" not in view["refused"]
    assert "no figure" in client.get("/api/figures/nothing.svg").json()["error"]
    assert client.get("/no/such/page").json()["error"] == "Not Found"


@pytest.mark.parametrize(
    ("kind", "body", "name", "said"),
    [
        ("config", b"not json at all", "config.json", "not"),
        ("config", b"[1, 2, 3]", "config.json", "object"),
        ("config", b'{"model_type": "made-up"}', "config.json", "made-up"),
        ("config", b'{"hidden_size": 1}', "config.json", "model_type"),
        ("config", b"[" * 100_000, "config.json", ""),
        ("config", b"\xff\xfe\x00", "config.json", ""),
        ("acceptance", b"PK\x03\x04", "bank.parquet", "Parquet"),
        ("acceptance", b"a,b\n1,2\n", "bank.csv", "commits"),
        ("acceptance", b"x", "bank.exe", "a bank must be"),
        ("acceptance", b'{"schema": "other"}', "mine.acceptance.json", "profile acceptance"),
        ("routing", b"{}", "mine.routing.json", "profile routing"),
        ("speculator", b"x", "speculator.parquet", "drop both together"),
        ("config", b"", "../../../etc/<script>alert(1)</script>", ""),
        ("config", b"", "con\x00\r\nSet-Cookie: a=b", ""),
    ],
)
def test_bad_uploads_get_a_sentence_and_change_nothing(
    client: httpx.Client, kind: str, body: bytes, name: str, said: str
) -> None:
    before = client.get("/api/plan").json()
    reply = upload(client, kind, body, name)
    assert reply.status_code in (400, 422)
    assert said in reply.json()["error"]
    for leak in ("Traceback", "/tmp", "<script>", "specmargin-"):
        assert leak not in reply.text
    assert client.get("/api/plan").json() == before


def test_a_large_upload_is_stopped_while_it_arrives(client: httpx.Client) -> None:
    sent = 0

    def body() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1 << 20
            yield b"x" * (1 << 20)

    reply = client.post("/api/uploads/config", params={"name": "config.json"}, content=body())
    assert reply.status_code == 413
    assert f"{LIMITS['config'] >> 20} MB" in reply.json()["error"]


def test_a_file_of_another_model_is_refused_where_it_is_used(client: httpx.Client) -> None:
    """A configuration is no bank, and an id that nobody dropped is nothing."""
    uploaded = upload(client, "config", json.dumps(CONFIG).encode()).json()
    wrong = client.get("/api/plan", params={"acceptance": f"upload:{uploaded['id']}"})
    assert wrong.status_code == 400 and "not acceptance" in wrong.json()["error"]
    gone = client.get("/api/plan", params={"model": "upload:0123456789abcdef"})
    assert gone.status_code == 400 and "drop it on the page again" in gone.json()["error"]


# --- who may ask ---


def test_headers_are_strict(client: httpx.Client) -> None:
    for path in ("/", "/story", "/api/catalog", "/static/app.js", "/static/lib/vega.js", "/api/nothing"):
        reply = client.get(path)
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY


def test_the_page_knows_every_field(client: httpx.Client) -> None:
    """What the page takes from its address, and the values that it leaves out of it."""
    fields, defaults = (
        json.loads(line.partition(" = ")[2].rstrip(";")) for line in client.get("/static/fields.js").text.splitlines()
    )
    assert fields == list(Query.model_fields)
    assert Query.model_validate(defaults) == Query()


def test_static_files_are_only_ours(client: httpx.Client) -> None:
    assert client.get("/static/server.py").status_code == 404
    assert client.get("/static/..%2fserver.py").status_code == 404


def test_other_names_and_other_origins_are_refused(client: httpx.Client) -> None:
    """DNS rebinding: a page of evil.example that resolves to us still says its own name."""
    assert client.get("/api/catalog", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/api/catalog", headers={"host": "localhost:1"}).status_code == 200
    foreign = client.post("/api/uploads/config", content=b"{}", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    null = client.post("/api/uploads/config", content=b"{}", headers={"origin": "null"})
    assert null.status_code == 403


def test_an_origin_has_scheme_name_and_port(client: httpx.Client) -> None:
    """Another server on this machine is another site."""
    own = str(client.base_url).rstrip("/")
    port = client.base_url.port or 80
    for origin, status in [
        (own, 200),
        (f"http://127.0.0.1:{port + 1}", 403),
        (f"https://127.0.0.1:{port}", 403),
        (f"http://localhost:{port}", 403),
    ]:
        assert client.get("/api/catalog", headers={"origin": origin}).status_code == status, origin


def test_elsewhere_a_token_is_needed() -> None:
    with running(token="s3cret") as address, httpx.Client(base_url=address) as client:
        assert client.get("/").status_code == 401
        assert client.get("/api/plan", params={"token": "wrong"}).status_code == 401
        assert client.get("/api/catalog", headers={"authorization": "Bearer s3cret"}).status_code == 200
        welcome = client.get("/", params={"token": "s3cret"})
        assert welcome.status_code == 303 and "HttpOnly" in welcome.headers["set-cookie"]
        assert client.get("/").status_code == 200  # the cookie is kept
    with running(token="s3cret") as address, httpx.Client(base_url=address) as client:
        link = client.get("/", params={"token": "s3cret", "model": "deepseek-v3", "gpu": "b200"})
        assert link.headers["location"] == "/?model=deepseek-v3&gpu=b200"


def test_hosts_of_an_address() -> None:
    from specmargin.show.explorer.guard import allowed_hosts, is_loopback  # noqa: PLC0415

    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.168.1.2")
    assert "192.168.1.2" in allowed_hosts("192.168.1.2") and "localhost" not in allowed_hosts("192.168.1.2")


def test_models_of_the_catalog_are_those_bundled(client: httpx.Client) -> None:
    shown = client.get("/api/catalog").json()["models"]
    one = next(model for model in shown if model["name"] == "qwen3.6-35b-a3b")
    assert one["experts"] == find_model("qwen3.6-35b-a3b").pools[0].experts


# --- verbs ---


@pytest.mark.parametrize(
    ("verb", "query"),
    [
        ("price", {"batch": "8", "depth": "2", "gpu": "b200"}),
        ("duel", {"alpha": "0.9", "batch": "4"}),
        ("coverage", {"positions": "1,8"}),
    ],
)
def test_a_verb_answers_as_on_the_command_line(client: httpx.Client, verb: str, query: dict[str, str]) -> None:
    answered = client.get(f"/api/{verb}", params=query)
    assert answered.status_code == 200, answered.text
    options = [word for name, value in ({"gpu": "h200"} | query).items() for word in (f"--{name}", value)]
    assert answered.json() == payload(verb, "qwen3.6-35b-a3b", *options)


def test_a_verb_reads_no_file_by_name(client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trace may name a file"):  # no verb that is served has such a field today
        refuse_files(find_verb("simulate"), ["trace"])
    assert client.get("/api/price", params={"model": str(tmp_path)}).status_code == 422
