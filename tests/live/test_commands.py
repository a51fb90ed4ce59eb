"""The commands of a plan, parsed by vLLM's own parsers: an option that vLLM does not have ends the test."""

from __future__ import annotations

import shlex

import pytest

from specmargin.verbs.plan.commands import check_json, serve_json
from specmargin.verbs.plan.drafter_plan import drafter_plans, row_and_range
from specmargin.verbs.plan.request_schema import PlanRequest

pytest.importorskip("vllm")


@pytest.mark.filterwarnings("ignore")  # of PyTorch, while vLLM is imported
@pytest.mark.parametrize(("gpus", "parallel"), [(1, "tp"), (8, "tp"), (8, "ep"), (8, "dp-ep")])
@pytest.mark.parametrize("load", [{}, {"weights": "fp8", "kv_cache": "fp8", "memory_utilization": 0.8}])
def test_vllm_takes_the_commands(gpus: int, parallel: str, load: dict[str, object]) -> None:
    from vllm.benchmarks.serve import add_cli_args  # noqa: PLC0415
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    fields = {"model": "qwen3-30b-a3b", "gpu": "h200", "prices": "laws", "gpus": gpus, "parallel": parallel, **load}
    answer = drafter_plans(PlanRequest.model_validate(fields))[0]
    command = shlex.split(serve_json(answer)["command"])
    assert command[:2] == ["vllm", "serve"]
    served = make_arg_parser(FlexibleArgumentParser()).parse_args(command[2:])
    assert "Qwen3-30B-A3B" in served.model_tag and served.speculative_config is not None
    check = shlex.split(check_json(answer, *row_and_range(answer, 16))["command"])
    assert check[:3] == ["vllm", "bench", "serve"]
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    asked = parser.parse_args(check[3:])
    assert asked.max_concurrency == 16 and asked.dataset_name == "speed_bench"
