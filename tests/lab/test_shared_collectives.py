"""Messages of ranks through shared memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lab.live.shared_collectives import _FILE, _Channel, prepare

_MESSAGES = 50


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_reads_what_all_wrote_in_order(tmp_path: Path, ranks: int) -> None:
    prepare(tmp_path, ranks)

    def exchanged(rank: int) -> list[list[int]]:
        channel = _Channel(tmp_path / _FILE, ranks)
        messages = (np.full((3, number % 5 + 1), 100 * rank + number) for number in range(_MESSAGES))
        found = [channel.exchange(message, rank) for message in messages]
        assert all(one.shape == (3, number % 5 + 1) for number, all_of in enumerate(found) for one in all_of)
        return [[int(one[0, 0]) for one in all_of] for all_of in found]

    with ThreadPoolExecutor(ranks) as pool:
        by_rank = list(pool.map(exchanged, range(ranks)))
    right = [[100 * rank + number for rank in range(ranks)] for number in range(_MESSAGES)]
    assert by_rank == [right] * ranks
