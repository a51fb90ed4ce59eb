"""Data-parallel ranks with expert parallelism: real ranks, waves, dummy batches and collectives, on one server.

`experts_on_cpu` supplies what vLLM's CPU build lacks, and writes down the draft passes that ranks really ran.
SPECMARGIN_RANKS is the number of ranks, SPECMARGIN_SOAK_MINUTES how long requests join and leave.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lab.live.experts_on_cpu import BROKEN_RANK, DEPTHS
from lab.live.models import Pair
from lab.live.rank_server import rank_server

from tests.live.conftest import DEPTH, Result, Server, engine_arguments, standard_batches

RANKS = int(os.environ.get("SPECMARGIN_RANKS", "2"))
SECONDS = 60.0 * float(os.environ.get("SPECMARGIN_SOAK_MINUTES", "1"))
CLIENTS = 6


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what ranks ran."""
    return tmp_path_factory.mktemp("passes")


@pytest.fixture(scope="module")
def server(pair: Pair, passes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from lab.live.policies import small_policy  # noqa: PLC0415 (compiled)

    folder = tmp_path_factory.mktemp("ranks")
    policy = folder / "ranks.policy.json"
    policy.write_text(small_policy(DEPTH, ranks=RANKS))
    settings = {"mode": "adaptive", "policy": str(policy), "slowest_decision_seconds": 20.0, "log_seconds": 1e9}
    arguments = engine_arguments(pair, speculative=True, settings=settings) | {"max_num_seqs": 16}
    del arguments["per_request_spec_decode_metrics"]
    helper, environment = "lab.live.experts_on_cpu", {DEPTHS: str(passes)}
    with rank_server(arguments, ranks=RANKS, helper=helper, folder=folder, environment=environment) as started:
        yield Server(url=started.url, process=started.process, log=started.log)


def answer(server: Server, prompt: list[int], rank: int, tokens: int = 40, patience: float = 120.0) -> list[int]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    headers = {"Content-Type": "application/json", "X-data-parallel-rank": str(rank)}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=patience) as response:
        found: dict[str, Any] = json.loads(response.read())
    return list(found["choices"][0]["token_ids"])


def answers(server: Server, prompts: list[list[int]], ranks: list[int]) -> list[list[int]]:
    """Sent at once, each to its rank."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda one: answer(server, *one), zip(prompts, ranks, strict=True)))


def drafted(passes: Path) -> list[tuple[tuple[str, int], ...]]:
    """By step: what each rank ran. Ranks that had drafted nothing yet, or in a step without requests, run one pass."""
    rows = []
    for rank in range(RANKS):
        lines = (passes / f"passes-{rank}.txt").read_text().splitlines()
        rows.append([(kind, max(int(depth), 1)) for kind, depth in map(str.split, lines)])
    return list(zip(*rows, strict=False))


def same_depths(steps: list[tuple[tuple[str, int], ...]]) -> bool:
    return all(len({depth for _, depth in step}) == 1 for step in steps)


def kinds(step: tuple[tuple[str, int], ...]) -> set[str]:
    """`drafts` and `dummy`: of the ranks that had requests and of those that had none."""
    return {kind for kind, _ in step}


def test_ranks_vote_and_answers_stay_the_same(server: Server, pair: Pair, plain: Result, passes: Path) -> None:
    """Load that differs by rank: one sequence on the first, then four, then sixteen of which three are elsewhere."""
    batches = [[request["prompt"] for request in batch] for batch in standard_batches(pair)]
    found = []
    for batch, other in zip(batches, (0, 1, 3), strict=True):
        ranks = [1 + index % (RANKS - 1) if index < other else 0 for index in range(len(batch))]
        found += answers(server, batch, ranks)
    assert found == plain.tokens
    assert server.log.read_text().count("data-parallel ranks vote on the depth") == RANKS
    steps = drafted(passes)
    assert same_depths(steps)
    assert len({step[0][1] for step in steps if "drafts" in kinds(step)}) > 1, "the depth never changed"
    assert any(kinds(step) == {"drafts", "dummy"} for step in steps), "no rank was idle"


def test_requests_that_join_and_leave_stop_nobody(server: Server, pair: Pair, passes: Path) -> None:
    """Clients that send, disconnect and pause, so that ranks are idle in turn and waves of steps end and begin."""
    prompts, until = [prompt for prompts in pair.prompts.values() for prompt in prompts], time.monotonic() + SECONDS

    def client(number: int) -> list[tuple[int, int]]:
        chance, sizes = random.Random(number), []
        while time.monotonic() < until:
            prompt, tokens = chance.choice(prompts), chance.choice([1, 3, 20, 60])
            patience = 0.3 if chance.random() < 0.2 else 120.0
            with contextlib.suppress(TimeoutError):
                rank = chance.choices(range(RANKS), [3, *[1] * (RANKS - 1)])[0]
                found = answer(server, prompt, rank, tokens, patience)
                sizes.append((tokens, len(found)))
            time.sleep(chance.choice([0.0, 0.0, 0.1, 1.5]))
        return sizes

    with ThreadPoolExecutor(CLIENTS) as pool:
        by_client = list(pool.map(client, range(CLIENTS)))
    sizes = [size for found in by_client for size in found]
    assert all(by_client), "a client was never answered"
    assert all(asked == got for asked, got in sizes)
    steps = drafted(passes)
    changes = sum(step[0][1] != following[0][1] for step, following in pairwise(steps))
    print(f"{len(steps)} steps, {changes} changes of depth, {len(sizes)} answers")
    assert len(steps) > len(sizes)
    assert same_depths(steps)


def test_a_rank_whose_policy_raises_stops_nobody(server: Server, pair: Pair, plain: Result, passes: Path) -> None:
    prompts = [request["prompt"] for batch in standard_batches(pair) for request in batch]
    before = len(drafted(passes))
    (passes / "break").touch()
    ranks = [index % RANKS for index in range(len(prompts))]
    assert answers(server, prompts[:12], ranks[:12]) == plain.tokens[:12]
    assert answers(server, prompts[12:], ranks[12:]) == plain.tokens[12:]
    time.sleep(0.2)  # the last dummy batch
    steps = drafted(passes)[before:]
    assert same_depths(steps)
    assert {step[0][1] for step in steps[-8:]} == {DEPTH}, "not static after a rank failed"
    assert f'specmargin_enabled{{engine="{BROKEN_RANK}"}} 0.0' in server.get("/metrics")
    assert "a rank cannot vote" in server.log.read_text()
