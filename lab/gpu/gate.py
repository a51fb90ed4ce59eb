"""Gates that take turns inside one running vLLM whose adaptive verification is enabled.

Everything that differs between the contestants is on the host or in small tensors of the manager, so the graphs and the
attention backend are the same for all of them: vLLM's gate with its own cost curve, with an honestly profiled one and
with the policy's prices; Specmargin's gate; and one depth with everything verified, which an engine without the gate
can be compared with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.gpu.serving import count_budgets

CONTESTANTS = ("vllm", "vllm honest", "vllm prices", "specmargin", "whole")


class Gates:
    """Make it while the engine is idle: the honest curve is profiled here, with dummy steps."""

    def __init__(self, runner: Any, policy: Path) -> None:
        from specmargin.live.gate_prices import gate_prices
        from specmargin.live.guard import Guard
        from specmargin.live.policy_schema import read_policy
        from specmargin.live.settings_schema import Curve, GateKind
        from specmargin.live.vllm.gate.manager import SpecmarginVerificationManager

        before = runner.adaptive_verification
        if before is None:
            raise RuntimeError("this engine has no adaptive verification: set enable_adaptive_verification")
        self.runner = runner
        self.guard = Guard(log=print, clock=lambda: 0.0)
        file = read_policy(policy)
        self.prices = gate_prices(file, int(runner.num_speculative_steps))
        self.sizes = runner.cudagraph_manager.captured_token_counts()
        self.prices.set_graphs(self.sizes)
        self.manager = SpecmarginVerificationManager(
            before.req_states,
            before.query_start_loc,
            before.num_bonus_tokens,
            max_total_logits=before._max_total_logits,
            kind=GateKind.NATIVE,
            curve=Curve.VLLM,
            prices=self.prices,
            guard=self.guard,
        )
        self.manager.context = int(file.context)
        self.manager.cost_tables = before.cost_tables
        self.manager._cudagraph_limit = before._cudagraph_limit
        self.shipped = before.cost_tables
        self.honest = self._profile()
        runner.adaptive_verification = self.manager

    def _profile(self) -> Any:
        from specmargin.live.settings_schema import Curve

        manager: Any = self.manager
        runner = self.runner
        manager.curve = Curve.PROFILED
        with runner.step_timing.collect() as timings:
            for batch in manager.batches_to_profile(self.sizes):
                runner._dummy_run(**batch)
        manager.set_initial_cost_curves(timings)
        honest, manager.cost_tables = manager.cost_tables, self.shipped
        manager.curve = Curve.VLLM
        return honest

    def use(self, contestant: str) -> None:
        """One of CONTESTANTS. `whole` verifies all drafts; their depth is the scheduler's."""
        from specmargin.live.settings_schema import Curve, GateKind

        manager = self.manager
        if contestant not in CONTESTANTS:
            raise ValueError(f"{contestant} is none of {', '.join(CONTESTANTS)}")
        manager.kind = GateKind.ON if contestant == "specmargin" else GateKind.NATIVE
        manager.curve = Curve.PRICES if contestant == "vllm prices" else Curve.VLLM
        manager.cost_tables = self.honest if contestant == "vllm honest" else self.shipped
        manager.whole = contestant == "whole"

    def count_budgets(self) -> list[tuple[int, int, int]]:
        """From now on: (sequences, drafts, verified drafts) of each step, in the list that is returned."""
        return count_budgets(self.manager)

    def curves(self) -> dict[str, list[float]]:
        """Milliseconds of a verify step by positions, for the record: what each curve says at the captured sizes."""
        sizes = [size for size in self.sizes if size < len(self.shipped[1])]
        return {
            "positions": [float(size) for size in sizes],
            "vllm": [round(float(self.shipped[1][size]), 4) for size in sizes],
            "vllm honest": [round(float(self.honest[1][size]), 4) for size in sizes],
        }
