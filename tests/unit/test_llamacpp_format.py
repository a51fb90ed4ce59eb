"""llama.cpp's setting: options that its server has, and what one depth for all batches costs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from specmargin.decisions.schedule import DepthTable, Schedule
from specmargin.formats.base import Launch, ScheduleRequest
from specmargin.formats.llamacpp import FORMAT
from specmargin.formats.rules import DepthRule, choose
from specmargin.hardware.layout import Layout
from tests.llamacpp_server import RECORDED

HELP = (RECORDED / "llama-server-help.txt").read_text(encoding="utf-8")
SPEEDUPS = np.array([[0.9, 1.2, 1.5], [0.9, 1.1, 1.3], [0.9, 1.05, 1.02], [0.9, 1.06, 0.9]])
TABLE = DepthTable(
    batches=np.array([1, 2, 3, 4]),
    speedup_by_batch_depth=SPEEDUPS,
    allowed_by_batch_depth=SPEEDUPS > 0,
    fits_by_depth=np.array([9, 9, 9]),
)


def test_one_depth_says_what_the_best_depth_of_each_batch_would_gain() -> None:
    chosen = choose(DepthRule(one_depth="one depth"), TABLE, (1, 2, 4), 0.01)
    assert chosen.schedule == Schedule.fixed(1, last=4)
    assert chosen.limits == ("one depth; the best depth of each batch would be up to 25% faster (batch 1)",)
    alone = choose(DepthRule(one_depth="one depth"), TABLE, (1,), 0.01)
    assert alone.limits == ("one depth",)


@pytest.mark.parametrize("kind", ["mtp", "eagle", "dflash", "dspark", "model", "ngram"])
def test_every_option_and_type_is_one_of_the_servers(kind: str) -> None:
    request = ScheduleRequest(
        table=TABLE,
        batches=(1, 2),
        drafter_kind=kind,
        drafter_model="",
        layout=Layout(),
        min_gain=0.01,
        hurdle_by_depth=(0.3, 0.4),
    )
    config = FORMAT.write(request)
    command = FORMAT.serve(Launch(model="m", layout=Layout(), config=config, sequences=4)).text
    known = set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", HELP))
    given = set(re.findall(r"(?<!\S)-{1,2}[a-z][\w-]*", command))
    assert given and given <= known
    types = re.search(r"--spec-type (\S+)", HELP)
    assert types is not None
    assert re.search(r"--spec-type (\S+)", config.text)[1] in types[1].split(",")  # type: ignore[index]
