"""Faults injected into stock vLLM servers on this machine, and what `specmargin doctor` says of each.

    python -m lab.live.doctor FOLDER [NAME ...]     records the servers of these names, or all of them

The model is the random pair of `lab/live/models.py`. FOLDER gets a file per load, as `lab/live/pages.py` describes it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.live import servers
from lab.live.cpu import cpu_dtype
from lab.live.measuring import DEVICE, ENVIRONMENT
from lab.live.models import Pair, random_pair
from lab.live.pages import Load, about, loaded, recorded, without_paths

ONE_CORE = ROOT / "tests" / "recordings" / "one-core"
ACCEPTANCE = (0.74, 0.54, 0.40, 0.30, 0.22, 0.16, 0.12)  # of the random pair, by depth
ENGINE = ENVIRONMENT | {"VLLM_PLUGINS": ""}  # as people run it: without this package's plug-in
SETTLE_SECONDS, READINGS = 3.0, 9
SHORT, LONG = (32, 96), (700, 900)  # prompt tokens
SLOW_HOST_SECONDS = "SPECMARGIN_SLOW_HOST_SECONDS"  # as lab/live/slow_host.py reads it
# First batch, last batch, depth. Loads are far inside a range: on a busy machine some of the clients wait for a prompt.
TABLE = [[1, 3, 3], [4, 11, 0], [12, 32, 7]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server, and loads with the cause that is right for each; None: nothing is wrong."""

    name: str
    loads: dict[str, tuple[Load, str | None]]
    speculative: dict[str, Any]
    kept: float = 1.0  # correlation of the drafter's logits with the right ones; 0: no matrix of it is right
    engine: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    with_log: tuple[str, ...] = ()  # loads on which `doctor` gets the server's log too, for its settings
    observed_seconds: float = 5.0
    tested: bool = True  # in `make test-live`
    least_batch: dict[str, float] = field(default_factory=dict)  # by load: below, its cause is not the right one


def _depth(depth: int, **more: Any) -> dict[str, Any]:
    return {"method": "draft_model", "num_speculative_tokens": depth, **more}


SUBJECTS = (
    Subject(
        name="by-table",
        speculative=_depth(7, num_speculative_tokens_per_batch_size=TABLE),
        loads={
            "healthy-1": (Load(clients=1, output_tokens=(100, 200)), None),
            "healthy-2": (Load(clients=2, prompt_tokens=(150, 300), output_tokens=(40, 300)), None),
            "healthy-3": (Load(clients=3, prompt_tokens=(16, 48), output_tokens=(80, 200)), None),
            "depth-7": (Load(clients=18, output_tokens=(120, 240)), "depth-too-deep"),
            "disabled": (Load(clients=10, output_tokens=(60, 240)), "not-drafting"),
            "long-prompts": (Load(clients=3, prompt_tokens=LONG, output_tokens=(2, 5)), "prompts"),
            "eager": (Load(clients=3), "eager"),  # as all of these servers are, whose prices are those of eager steps
        },
        with_log=("eager",),
        least_batch={"healthy-2": 1.4, "healthy-3": 2.0, "depth-7": 13.0, "disabled": 5.0},
    ),
    Subject(
        name="depth-2",
        tested=False,
        speculative=_depth(2),
        loads={
            "healthy-6": (Load(clients=6, output_tokens=(20, 250)), None),
            "healthy-12": (Load(clients=12, prompt_tokens=(16, 48), output_tokens=(80, 200)), None),
        },
    ),
    Subject(
        name="wrong-weights",
        speculative=_depth(3),
        kept=0.0,
        loads={"drafter": (Load(clients=6), "drafter-broken")},
    ),
    Subject(
        name="acceptance",
        speculative=_depth(3),
        kept=0.5,  # the largest of 4,096 logits is then the right one in 2.6% of all cases
        loads={"of-2-percent": (Load(clients=6), "drafter-broken")},
    ),
    Subject(
        # A random drafter is as good on random tokens as on any; a trained one loses about half of its acceptance.
        name="random-tokens",
        speculative=_depth(3),
        kept=0.95,
        loads={
            "benchmark": (Load(clients=8, prompt_tokens=(128, 128), output_tokens=(64, 64)), "random-tokens"),
        },
    ),
    Subject(
        name="tiny-cache",
        speculative=_depth(3),
        engine={"num_gpu_blocks_override": 12, "block_size": 128},
        loads={"waiting": (Load(clients=12, prompt_tokens=(100, 250), output_tokens=(60, 200)), "memory")},
    ),
    Subject(
        name="never-drafts",
        speculative={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 6, "prompt_lookup_max": 8},
        loads={"no-match": (Load(clients=6), "not-drafting")},
    ),
    Subject(
        name="slow-host",
        speculative=_depth(3),
        engine={"scheduler_cls": "lab.live.slow_host.SlowHost"},
        environment={SLOW_HOST_SECONDS: "0.3", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        loads={"sleeps": (Load(clients=12, output_tokens=(6, 16), phases=(1, 12)), "host")},
        observed_seconds=16.0,
    ),
)


# --- servers ---


def arguments(subject: Subject, pair: Pair) -> dict[str, Any]:
    draft = pair.draft if subject.kept == 1.0 else worse_draft(pair, subject.kept)
    model = {"model": str(draft)} if subject.speculative["method"] == "draft_model" else {}
    given: dict[str, Any] = {
        "model": str(pair.target),
        "dtype": cpu_dtype(),
        "max_model_len": 1024,
        "max_num_seqs": 32,
        "enforce_eager": True,
        "speculative_config": subject.speculative | model,
    }
    return given | subject.engine


def worse_draft(pair: Pair, kept: float) -> Path:
    """The drafter with noise on its head; with nothing kept, every matrix has the right values in the wrong order."""
    import torch  # noqa: PLC0415 (only in the live environment)
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    folder = pair.folder / f"draft-{kept:g}"
    if not folder.is_dir():
        shutil.copytree(pair.draft, folder)
        generator = torch.Generator().manual_seed(1)
        weights = load_file(folder / "model.safetensors")
        for name in [name for name, weight in weights.items() if weight.ndim > 1 and (not kept or "lm_head" in name)]:
            right = weights[name].float()
            wrong = right.flatten()[torch.randperm(right.numel(), generator=generator)].reshape(right.shape)
            mixed = kept * right + (1.0 - kept**2) ** 0.5 * wrong
            weights[name] = mixed.to(weights[name].dtype).contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def doctor_options() -> list[str]:
    """What a server on a CPU does not say of itself, and what its steps and its drafter reach."""
    given = {
        "--model": ONE_CORE / "target",
        "--gpu": ONE_CORE / "core.toml",
        "--prices": ONE_CORE / "prices.json",
        "--drafter": f"model:{ONE_CORE / 'draft'}",
        "--acceptance": ",".join(map(str, ACCEPTANCE)),
    }
    return [part for name, value in given.items() for part in (name, str(value))]


def record(subject: Subject, pair: Pair, out: Path) -> Iterator[Path]:
    given = arguments(subject, pair)
    environment = ENGINE | subject.environment
    with servers.served(given, folder=out / "logs" / subject.name, environment=environment) as server:
        for name, (load, cause) in subject.loads.items():
            with loaded(server.url, load, settle_seconds=SETTLE_SECONDS) as clients:
                said = about(load, engine="vllm", injected=subject.name, cause=cause, flags=servers.flags(given))
                said |= {"release": "0.32.0, CPU build", "with_log": name in subject.with_log}
                pages = recorded(
                    server.url, seconds=subject.observed_seconds, readings=READINGS, about=said, log=server.log
                )
            assert not clients.failures, clients.failures[:3]
            path = out / f"{subject.name}-{name}.json"
            path.write_text(json.dumps(without_paths(pages, pair.folder), indent=1))
            yield path


def main(given: list[str]) -> None:
    out = Path(given[0]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in given[1:] if not name.startswith("--")]
    pair = random_pair(out / "models")
    (out / "core.toml").write_text(DEVICE)
    for subject in SUBJECTS:
        if not names or subject.name in names:
            for path in record(subject, pair, out):
                print(path.name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
