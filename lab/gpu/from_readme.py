"""The README's "Start a gated vLLM", command by command as it is written, on this machine.

    python -m lab.gpu.from_readme OUT [--layers 8] [--small]     --small: to rehearse on a CPU, where no gate runs

Only what a machine without network lacks is put in: model and head are folders with dummy weights (fewer layers and
experts, so that the server fits beside others), acceptance is synthetic, and the plan is made from a real bank's
profile, since the confidences of dummy weights mean nothing. The servers do not compile, which is half of their start.
OUT gets record.json: each command as the README or the plan gives it, as it was run, and what it said.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import CATALOG, ROOT
from lab.gpu.doctor import shrink
from lab.gpu.jobs import UNIFORM, head_folder, model_folder
from lab.live import servers
from lab.live.cpu import cpu_dtype
from lab.live.measuring import ENVIRONMENT
from lab.live.trace_client import Planned, send_all
from lab.live.word_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTION = "Start a gated vLLM"
MODEL, NAME = "qwen3-30b-a3b", "m"
ACCEPTANCE = [0.78, 0.6, 0.46, 0.36, 0.28, 0.22, 0.17, 0.13]  # unconditional, by position
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
FEWER = {"num_experts": 16, "vocab_size": 8192, "draft_vocab_size": 4096}


def commands() -> list[str]:
    """Of the section, in its order; continued lines are joined."""
    text = (ROOT / "README.md").read_text().split(f"## {SECTION}\n")[1].split("\n## ")[0]
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    return [" ".join(line[2:].split("  #")[0].split()) for line in blocks.splitlines() if line.startswith("$ ")]


class Reader:
    """Someone who types the README's commands in an empty folder."""

    def __init__(self, out: Path, *, layers: int, small: bool) -> None:
        self.out, self.small = out, small
        self.record: list[dict[str, Any]] = []
        models = out / "models"
        self.model = Path(model_folder(models, MODEL, layers))
        self.head = Path(head_folder(models, MODEL, layers))
        if small:
            shrink(self.model, self.head)
        for path in (self.model, self.head):
            config = json.loads((path / "config.json").read_text())
            fewer = {name: FEWER[name] for name in FEWER.keys() & config.keys()}
            (path / "config.json").write_text(json.dumps(config | fewer))
        write_tokenizer(self.model, FEWER["vocab_size"])

    def run(self, command: str) -> str:
        """To its end; `| tail -4` of the README is the shell's."""
        words = shlex.split(command.split(" | ", maxsplit=1)[0])
        begun = time.monotonic()
        asked = [sys.executable, "-m", "specmargin.cli.main", *words[1:]]
        ended = subprocess.run(asked, cwd=self.out, capture_output=True, text=True, timeout=120, check=False)
        self.note(command, shlex.join(words), begun, exit=ended.returncode, output=ended.stdout, errors=ended.stderr)
        return ended.stdout

    def note(self, written: str, ran: str, begun: float, **said: Any) -> None:
        self.record.append({"written": written, "ran": ran, "seconds": round(time.monotonic() - begun, 1), **said})
        (self.out / "record.json").write_text(json.dumps(self.record, indent=1).replace(str(self.out), "OUT"))
        print(f"{self.record[-1]['seconds']:6.1f} s  {written}", flush=True)

    @contextmanager
    def serve(self, command: str, name: str) -> Iterator[str]:
        """Until the block ends; what it logged is recorded. The last of two equal flags counts."""
        begun, words = time.monotonic(), self._offline(shlex.split(command))
        options = ["--model", *words[2:]]  # `vllm serve MODEL …`
        environment = ENVIRONMENT if self.small else UNIFORM
        server = servers.launch(options, folder=self.out, environment=environment, log=f"{name}.log")
        try:
            servers.wait(server, 400.0)
            ready = round(time.monotonic() - begun, 1)
            yield server.url
        finally:
            servers.end(server)
        lines = [line for line in server.log.read_text().splitlines() if "Specmargin" in line or "ERROR" in line]
        self.note(command, shlex.join(words), begun, ready_after_seconds=ready, log=lines)

    def _offline(self, words: list[str]) -> list[str]:
        at = words.index("--speculative-config") + 1
        config = json.loads(words[at]) | {"model": str(self.head)}
        if not self.small:
            rates = ACCEPTANCE[: config["num_speculative_tokens"]]
            config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        words[2], words[at] = str(self.model), json.dumps(config)
        words += ["--served-model-name", NAME, "--load-format", "dummy"]
        if self.small:
            return [*words, "--max-model-len", "1024", "--max-num-seqs", "8", "--dtype", cpu_dtype(), "--enforce-eager"]
        compilation = {"mode": 0, "cudagraph_capture_sizes": SIZES}
        words += ["--max-model-len", "2048", "--max-num-seqs", "64", "--max-num-batched-tokens", "2048"]
        words += ["--compilation-config", json.dumps(compilation)]
        return [*words, "--gpu-memory-utilization", "0.02", "--kv-cache-memory-bytes", "600000000"]

    def traffic(self, url: str, seconds: float) -> None:
        count = 6 if self.small else 400
        prompts = (24, 60) if self.small else (200, 900)
        planned = [
            Planned(at_seconds=0.6 * seconds * i / count, prompt_tokens=prompts[i % 2], output_tokens=80 + i % 100)
            for i in range(count)
        ]
        begun = time.monotonic()
        _, answers = send_all(
            url, NAME, planned, vocabulary=FEWER["vocab_size"], seconds=seconds, seed=str(time.time())
        )
        tokens = sum(len(answer.token_seconds) for answer in answers)
        told = [answer.failure for answer in answers if answer.failure and answer.complete]
        self.note("(traffic)", f"{count} requests", begun, tokens=tokens, failures=told)


def main(given: list[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--small", action="store_true")
    options.add_argument("--seconds", type=float, default=12.0, help="of traffic, per server")
    chosen = options.parse_args(given)
    out = chosen.out.resolve()
    out.mkdir(parents=True)
    reader = Reader(out, layers=chosen.layers, small=chosen.small)
    _, check, observe, profile, plan = commands()
    reader.run(check)
    with reader.serve(observe, "observe") as url:
        reader.traffic(url, chosen.seconds)
    reader.run(profile)
    (out / "mine.acceptance.json").unlink(missing_ok=True)  # dummy weights have no confidences: a real bank's profile
    shutil.copyfile(CATALOG / "acceptance" / "reference-moe.acceptance.json", out / "mine.acceptance.json")
    last = reader.run(plan).splitlines()[-1]
    with reader.serve(last.replace("<your EAGLE-3 head>", "HEAD"), "gated") as url:
        with ThreadPoolExecutor() as pool:
            pool.submit(reader.traffic, url, chosen.seconds + 6.0)
            reader.run(f"specmargin doctor {url} --gpu h200 --model {MODEL}")
        reader.run(f"specmargin watch {url} --once")


if __name__ == "__main__":
    main(sys.argv[1:])
