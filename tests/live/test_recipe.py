"""`examples/reference_moe` at a tiny size: trained, stopped, resumed, captured, profiled and served."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.data import REFERENCE_BANK

RECIPE = ROOT / "examples" / "reference_moe"
LAYERS, EXPERTS, K, DEPTH = 2, 8, 2, 8
KEYS = ["model", "speculator", "config", "category", "prompt_idx", "turn", "round_idx"]
COLUMNS = {
    "acceptance": [*KEYS, "context_len", "accept", *(f"acc{d}" for d in range(DEPTH))],
    "speculator": [*KEYS, *(f"conf{d}" for d in range(DEPTH))],
    "routing_meta": [*KEYS, "routing_idx", "routing_block_idx", "request_idx", "position", "accepted"],
}

# One thread: sums in the same order everywhere, and no spinning beside other tests.
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
_missing = [name for name in ("torch", "tokenizers", "safetensors", "polars") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(_missing), reason=f"the recipe needs {', '.join(_missing)}: run `make test-live`"),
    pytest.mark.filterwarnings("default"),  # torch's own
]


def _command(out: Path, *more: str) -> list[str]:
    script = str(RECIPE / "recipe.py")
    return [sys.executable, script, "--out", str(out), "--tiny", "--device", "cpu", *more]


def _text() -> list[str]:
    include = sysconfig.get_paths()["include"]
    folders = [ROOT / "src", ROOT / "docs", *([Path(include)] if Path(include).is_dir() else [])]
    return ["--text", *map(str, folders)]


def _run(*command: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=_ENVIRONMENT)


@pytest.fixture(scope="module")
def recipe_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recipe") / "out"
    result = _run(*_command(out, *_text()))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == json.loads((out / "metrics.json").read_text())
    return out


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The recipe's modules, by name, as its own scripts see them."""
    monkeypatch.syspath_prepend(str(RECIPE))
    before = set(sys.modules)
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in _ENVIRONMENT
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if str(RECIPE) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_it_learns_and_uses_its_experts(recipe_output: Path) -> None:
    metrics = json.loads((recipe_output / "metrics.json").read_text())
    for nats in metrics["target"]["nats"].values():
        assert nats < 0.9 * np.log(512)  # better than chance after seconds
    usage = metrics["target"]["experts"]
    assert usage["never_used"] == [0, 0]
    assert all(0.7 < evenness < 1.0 for evenness in usage["evenness"])  # neither collapsed nor forced to be equal
    assert all(metrics["mean_accepted"] > 0.2 for metrics in metrics["bank"]["categories"].values())


def test_weights_have_the_names_that_engines_expect(recipe_output: Path) -> None:
    from safetensors import safe_open  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    layer = ["input_layernorm", "post_attention_layernorm", "mlp.gate"]
    layer += [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    layer += [f"mlp.experts.{e}.{name}_proj" for e in range(EXPERTS) for name in ("gate", "up", "down")]
    expected = {f"model.layers.{i}.{name}.weight" for i in range(LAYERS) for name in layer}
    with safe_open(recipe_output / "target" / "model.safetensors", framework="np") as file:
        assert set(file.keys()) == expected | {"model.embed_tokens.weight", "model.norm.weight"}
        assert file.get_slice("model.layers.1.mlp.experts.7.down_proj.weight").get_shape() == [64, 32]
    assert json.loads((recipe_output / "target" / "config.json").read_text())["architectures"] == [
        "Qwen3MoeForCausalLM"
    ]
    assert json.loads((recipe_output / "draft" / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_the_full_size_is_that_of_the_catalog(parts: Any) -> None:
    full = parts("settings").FULL
    for shape, name in ((full.target, "reference-moe"), (full.draft, "reference-draft")):
        entry = json.loads((ROOT / "src" / "specmargin" / "catalog" / "models" / f"{name}.json").read_text())
        assert {key: shape.config()[key] for key in entry["config"]} == entry["config"]


def test_the_bank_is_one_that_specmargin_reads(recipe_output: Path) -> None:
    pl = pytest.importorskip("polars")
    from specmargin.acceptance.bank import read_bank  # noqa: PLC0415
    from specmargin.acceptance.estimate import survival_estimate  # noqa: PLC0415
    from specmargin.routing.capture import open_captures  # noqa: PLC0415
    from specmargin.routing.counts import count  # noqa: PLC0415

    frames = {name: pl.read_parquet(recipe_output / "bank" / f"{name}.parquet") for name in COLUMNS}
    assert {name: frame.columns for name, frame in frames.items()} == COLUMNS
    for name, frame in frames.items():
        assert frame.schema == pl.read_parquet_schema(REFERENCE_BANK / f"{name}.parquet")
    rounds = read_bank([recipe_output / "bank"])
    assert rounds.has_confidence
    assert survival_estimate(rounds).survival[0] == pytest.approx((rounds.accepted_by_round > 0).mean())
    counts = count(open_captures([str(recipe_output / "bank")]), experts=EXPERTS, longest_run=16)
    assert set(counts) == set(json.loads((recipe_output / "prompts.json").read_text())) == set(rounds.categories)


def test_every_round_follows_from_the_one_before(recipe_output: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.read_parquet(recipe_output / "bank" / "acceptance.parquet").sort("prompt_idx", "round_idx")
    for _, request in frame.group_by("prompt_idx", maintain_order=True):
        context, accept = request["context_len"].to_numpy(), request["accept"].to_numpy()
        assert (np.diff(context) == accept[:-1] + 1).all()
        assert request["round_idx"].to_list() == list(range(request.height))
        assert context[-1] + accept[-1] + 1 >= context[0] + 24 > context[-1]
    is_accepted = frame.select([f"acc{d}" for d in range(DEPTH)]).to_numpy()
    assert (is_accepted == (np.arange(DEPTH) < frame["accept"].to_numpy()[:, None])).all()
    experts = np.load(recipe_output / "bank" / "routing.npy")
    meta = pl.read_parquet(recipe_output / "bank" / "routing_meta.parquet")
    assert experts.shape == (frame.height * (DEPTH + 1), LAYERS, K) == (meta.height, LAYERS, K)
    assert experts.max() < EXPERTS
    assert (experts[..., 0] != experts[..., 1]).all()
    assert meta["accepted"].sum() == frame["accept"].sum() + frame.height


def test_a_killed_run_resumes_with_the_same_result(recipe_output: Path, tmp_path: Path) -> None:
    """Killed after the first checkpoint; the same command then writes identical files."""
    out = tmp_path / "out"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(_command(out, *_text()), stdout=quiet, stderr=quiet, env=_ENVIRONMENT)
    deadline = time.monotonic() + 120.0
    while not (out / "checkpoints" / "target.pt").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert not (out / "bank").exists()
    assert _run(*_command(out, *_text())).returncode == 0
    names = ["target/model.safetensors", "draft/model.safetensors", "prompts.json", "metrics.json"]
    for name in [*names, "bank/routing.npy", "bank/acceptance.parquet", "bank/speculator.parquet"]:
        assert (out / name).read_bytes() == (recipe_output / name).read_bytes(), name


def test_what_is_committed_is_distributed_as_the_target_alone(recipe_output: Path, parts: Any) -> None:
    """40,000 copies of one prompt: frequencies of the first two new tokens against the target's own probabilities."""
    torch = parts("torch")
    bank, folders, settings = parts("bank"), parts("folders"), parts("settings")
    tiny = settings.replace(settings.TINY, depth=3, temperature=0.6)
    target, draft = (folders.read_model(recipe_output / name) for name in ("target", "draft"))
    prompt = bank.read_requests(recipe_output, tiny)[0].tokens[:6]
    copies, generator = 40_000, torch.Generator().manual_seed(5)
    tokens = torch.full((copies, 12), 0)
    tokens[:, :6] = torch.tensor(prompt)
    batch = bank.Batch(tokens, torch.full((copies,), 6))
    with torch.no_grad():
        offered, _ = bank._draft(draft, batch, tiny, generator)
        accepted, last, _ = bank._verify(target, batch, offered, tiny, generator)
        batch.tokens[torch.arange(copies), batch.length + accepted] = last
        alone = bank.Batch(torch.tensor([prompt]), torch.tensor([6]))
        probabilities = bank._distributions(target, alone, torch.tensor([[5]]), tiny)[0][0, 0].numpy()
    counts = np.bincount(batch.tokens[:, 6].numpy(), minlength=probabilities.size)
    assert _chance(counts, probabilities) > 1e-9
    common = int(counts.argmax())
    followed = batch.tokens[(batch.tokens[:, 6] == common) & (accepted > 0), 7].numpy()
    with torch.no_grad():
        alone = bank.Batch(torch.tensor([[*prompt, common]]), torch.tensor([7]))
        probabilities = bank._distributions(target, alone, torch.tensor([[6]]), tiny)[0][0, 0].numpy()
    assert _chance(np.bincount(followed, minlength=probabilities.size), probabilities) > 1e-9


def _chance(counts: Any, probabilities: Any) -> float:
    """Of counts as far from these probabilities: Pearson's χ² over tokens by falling probability, in groups of about
    ten expected ones.

    The model changes with the training text, so every change draws again: a billionth may be asked for, not a percent.
    """
    chi2 = pytest.importorskip("scipy.stats").chi2
    order = np.argsort(-probabilities)
    expected = probabilities[order].astype(float) / probabilities.sum() * counts.sum()
    group = np.minimum(np.cumsum(expected) // 10, counts.sum() // 10 - 1).astype(int)
    group = np.unique(group, return_inverse=True)[1]
    observed, expected = np.bincount(group, counts[order]), np.bincount(group, expected)
    freedom = observed.size - 1
    assert freedom >= 2
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), freedom))


class Ticks:
    """A clock with one unit less left at each call."""

    elapsed = 0.0

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def left(self, _stage: str) -> float:
        self.calls -= 1
        return float(self.calls)


def test_training_ends_with_the_clock(
    recipe_output: Path, tmp_path: Path, parts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learning-rate schedule ends with the time limit; without any time left, training is refused."""
    torch, training, settings = parts("torch"), parts("training"), parts("settings")
    tokens = parts("text").read(recipe_output).train
    long = settings.replace(settings.TINY, target_steps=10_000)
    rates: list[float] = []
    set_rate = training._set_rate

    def record_rate(optimizer: Any, peak: float, part: float) -> None:
        set_rate(optimizer, peak, part)
        rates.append(optimizer.param_groups[0]["lr"] / peak)

    training._set_rate = record_rate
    training.train_target(tokens, long, torch.device("cpu"), tmp_path, Ticks(21))
    assert "20 steps" in capsys.readouterr().err
    assert len(rates) == 20
    assert max(rates) > 0.9
    assert rates[-1] < 0.1
    with pytest.raises(settings.RecipeError, match="no time is left to train the target"):
        training.train_target(tokens, long, torch.device("cpu"), tmp_path, Ticks(1))


def test_mistakes_are_one_sentence(recipe_output: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        "another seed": _command(recipe_output, *_text(), "--seed", "1"),
        "no such folder": _command(tmp_path / "a", "--text", str(tmp_path / "nowhere")),
        "no text in": _command(tmp_path / "b", "--text", str(tmp_path / "empty")),
        "not there yet": _command(tmp_path / "c", "--only", "draft"),
        "--device tpu": [*_command(tmp_path / "d"), "--device", "tpu"],
        "must be above zero": _command(tmp_path / "e", "--minutes", "-1"),
        "at most 206": _command(tmp_path / "f", "--new-tokens", "900"),
    }
    running = {
        message: subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for message, command in cases.items()
    }
    for message, process in running.items():
        _, error = process.communicate(timeout=120)
        assert process.returncode == 1
        assert error.startswith("recipe: ")
        assert message in error
        assert len(error.splitlines()) == 1


def test_vllm_generates_the_same_tokens(recipe_output: Path) -> None:
    """Target and drafter in a real engine, float32, greedy: the same tokens as the recipe's own code."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: run `make test-live`")
    result = _run(sys.executable, str(RECIPE / "check.py"), str(recipe_output))
    assert result.returncode == 0, result.stderr[-2000:]
    result_of_check = json.loads(result.stdout.splitlines()[-1])
    assert result_of_check["same_tokens"] is True
    assert result_of_check["largest_difference"] < 1e-4
