"""What inference-lab is given of a recorded load, and what is said where it cannot run."""

from __future__ import annotations

import json

import pytest
from lab.speed import peers
from lab.validation.recorded_servers import RECORDINGS, recorded


def test_the_peer_gets_the_recorded_load() -> None:
    server = recorded(RECORDINGS[0])
    given = json.loads(peers.peer_load(server))
    assert given["workload"]["num_concurrent_users"] == server.clients
    low, high = server.output_tokens
    assert given["workload"]["output_len_dist"] == {"type": "uniform", "min": low, "max": high}
    assert given["model"]["num_parameters"] == pytest.approx(30.5e9, rel=0.01)
    assert given["model"]["num_active_parameters"] == pytest.approx(3.3e9, rel=0.15)
    assert given["hardware"]["memory_bandwidth"] == 4.8e12
    # The cache holds the tokens that the server reported room for.
    token_bytes = 2 * given["model"]["num_layers"] * given["model"]["num_kv_heads"] * 128 * 2
    assert given["hardware"]["kv_cache_capacity"] == server.kv_blocks * 16 * token_bytes


def test_without_node_the_peer_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert peers.peer_errors(recorded(RECORDINGS[0])) == "node and npm are not installed: the peer is not measured"


def test_errors_are_relative_to_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    server = recorded(RECORDINGS[0])
    metrics = {theirs: 2.0 * server.measured[name] for name, theirs in peers.PEER_METRICS.items()}
    run = peers.PeerRun(seconds=0.5, tokens=100, metrics=metrics)
    monkeypatch.setattr(peers, "peer", lambda *_: run)
    assert peers.peer_errors(server) == pytest.approx(dict.fromkeys(peers.PEER_METRICS, 1.0))
    assert run.speed == 200.0
