"""Python asks through the same request as the command line, and gets the same answer."""

from __future__ import annotations

import json

import pytest

import specmargin
from specmargin.cli.main import run
from specmargin.errors import InputError


def test_the_same_answer_as_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = specmargin.plan("qwen3.6-35b-a3b", gpu="h200", gpus=2, batch=[1, 64], acceptance="0.7")
    options = "qwen3.6-35b-a3b --gpu h200 --gpus 2 --batch 1,64 --acceptance 0.7 --json"
    assert run("plan", options.split()) == 0
    assert json.loads(json.dumps(result.to_dict())) == json.loads(capsys.readouterr().out)


def test_flags_of_another_engine() -> None:
    result = specmargin.plan("qwen3.6-35b-a3b", gpu="h200", batch=8, prices="laws")
    assert "num_speculative_tokens" in result.flags()
    assert "--speculative" in result.flags("sglang")
    assert result.flags("sglang") != result.flags()


def test_a_frame_has_a_row_per_batch() -> None:
    frame = specmargin.plan("qwen3-30b-a3b", gpu="h100", batch="1,2,4", prices="laws").to_frame()
    assert frame["batch"].to_list() == [1, 2, 4]
    assert (frame["speedup"] > 0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"gpu": "h200", "bacth": 3}, "bacth"), ({}, "gpu"), ({"gpu": "h200", "depth": -1}, "depth")],
)
def test_a_bad_option_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        specmargin.plan("qwen3.6-35b-a3b", **options)
