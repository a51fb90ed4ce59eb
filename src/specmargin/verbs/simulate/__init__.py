"""Simulate an engine like vLLM that serves a workload under one policy or several.

Models arrivals, chunked prefill, KV blocks, preemption, and drafts that are verified one step later.

Options given together with a scenario file override the file.

Examples:

  specmargin simulate qwen3.6-35b-a3b --gpu h200 --qps 6 --policy controller,fixed:2,none
  specmargin simulate qwen3.6-35b-a3b --gpu h200 --find qps --tpot-slo 20 --ttft-slo 500
  specmargin simulate day.toml --plot day.png
  specmargin simulate deepseek-v3.2 --gpu h200 --dp 16 --ep --qps 40 --router least-requests
  specmargin simulate qwen3-235b-a22b --gpu h200 --gpus 4 --qps 8 --prefill-instances 1
  specmargin simulate llama-3.1-70b --gpu h100-sxm --gpus 4 --drafter eagle --concurrency 64 --requests 1000
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import ScenarioError
from specmargin.verbs.simulate.answer import SimulateAnswer, policy_rows
from specmargin.verbs.simulate.outputs_schema import SimulateOutputs
from specmargin.verbs.simulate.request_schema import SimulateRequest, completed

__all__ = ["SimulateAnswer", "simulate"]

if TYPE_CHECKING:
    from specmargin.simulator.policies import PolicyChoice
    from specmargin.simulator.results import Result
    from specmargin.simulator.serving import Serving


@verb(SimulateRequest, outputs=SimulateOutputs)
def simulate(
    request: SimulateRequest, *, outputs: SimulateOutputs | None = None, progress: Progress = silent
) -> SimulateAnswer:
    request, folder = completed(request)
    names = request.policy.split(",")
    outputs = outputs or SimulateOutputs()
    if len(names) > 1 and (outputs.save_requests or outputs.save_steps):
        raise ScenarioError("--save-requests and --save-steps need a single policy: name one with --policy")
    if request.find is not None and (outputs.save_requests or outputs.save_steps):
        raise ScenarioError("--save-requests and --save-steps are of one run: give its load instead of --find")
    if request.router is not None and outputs.save_steps is not None:
        raise ScenarioError("--save-steps is of one engine: leave out --router")
    if request.prefill_instances is not None and outputs.save_steps is not None:
        raise ScenarioError("--save-steps is of one engine: leave out --prefill-instances")
    from specmargin.simulator import run
    from specmargin.simulator.fleet.run import check_fleet
    from specmargin.simulator.pools import check_pools
    from specmargin.verbs.simulate.serving import run_policies, run_serving, serving_of, slo_of

    serving = serving_of(request, folder)
    if serving.router is not None:
        check_fleet(serving)
    if serving.pools is not None:
        check_pools(serving)
    for name in names:
        run.check(serving, name)
    if request.find is not None:
        from specmargin.verbs.simulate.capacity import find_capacity

        return find_capacity(request, folder, serving, progress)
    log_steps = outputs.save_steps is not None

    def run_one(serving: Serving, choice: PolicyChoice | None) -> Result:
        with progress(serving.policy, serving.workload.arrivals.requests) as advance:
            return run_serving(serving, choice, log_steps=log_steps, advance=advance)

    results = run_policies(request, folder, serving, run_one)
    return SimulateAnswer(
        request=request, results=tuple(results), policies=policy_rows(results, slo_of(request), request.gpu_hour_price)
    )
