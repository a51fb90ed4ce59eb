"""Whether speculation pays, the draft depth per batch size, and the engine configuration.

Prints a verdict, one row per batch size, and the flags for the engine.

Examples:

  specmargin plan qwen3.6-35b-a3b --gpu h200

  specmargin plan deepseek-v3 --gpu h200 --gpus 8 --parallel ep --acceptance 0.82

  specmargin plan ./my-model --gpu b200 --qps 4 --isl 1000 --osl 300 --tpot-slo 20

  specmargin plan gpt-oss-120b --gpu rtx-3090 --cpu ryzen-9950x --host-memory 96
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Line, Verbatim, bold, dim
from specmargin.answers.outputs_schema import FILE, OUTPUT, ChartOutputs, Outputs
from specmargin.answers.request_schema import read_request
from specmargin.answers.verb import verb
from specmargin.errors import ScenarioError
from specmargin.files import check_text, is_table, write_table, write_text
from specmargin.verbs.plan.request_schema import PlanRequest

if TYPE_CHECKING:
    from specmargin.decisions.rows import PlanRow
    from specmargin.decisions.scenario import Scenario
    from specmargin.formats.base import EngineConfig
    from specmargin.show.figures.figure import Chart
    from specmargin.verbs.plan.comparison import Compared
    from specmargin.verbs.plan.drafter_plan import DrafterPlan
    from specmargin.verbs.plan.several import Machines


class PlanOutputs(ChartOutputs):
    output: Annotated[
        Path | None,
        Field(description="Write the engine configuration to this file, or the table to FILE.csv."),
        FILE.named("--output", "-o"),
    ] = None
    policy: Annotated[
        Path | None,
        Field(description="Write the policy file of the live controller in vLLM or SGLang (docs/guide/vllm.md)."),
        FILE,
    ] = None
    sps_table: Annotated[
        Path | None,
        Field(description="Write the price table of SGLang's DSpark (--engine sglang --drafter dspark)."),
        FILE,
    ] = None
    explain: Annotated[
        bool,
        Field(description="Also print bottlenecks, experts, break-even lengths, notes and all sources."),
        OUTPUT.needed,
    ] = False
    grid: Annotated[
        bool,
        Field(description="Every batch at every depth: printed, in the JSON, and in -o FILE.csv, .parquet or .json."),
        OUTPUT,
    ] = False

    def check(self) -> None:
        if self.grid and self.output is not None:
            from specmargin.verbs.plan.depth_grid import check_grid

            check_grid(self.output)
        if self.output is not None and not is_table(self.output):  # the engine's configuration, of any name
            check_text(self.output, force=self.force)
            return self.model_copy(update={"output": None}).check()
        return super().check()


@verb(PlanRequest, outputs=PlanOutputs, waiting="planning; a load is simulated, which first compiles the simulator")
def plan(request: PlanRequest, outputs: PlanOutputs | None = None) -> PlanAnswer:
    from specmargin.verbs.plan.comparison import compare
    from specmargin.verbs.plan.drafter_plan import check_policy, drafter_plans
    from specmargin.verbs.plan.machines import machines
    from specmargin.verbs.plan.price_table import check_price_table

    shows_grid = outputs is not None and outputs.grid
    requests = machines(request)
    if len(requests) > 1:
        from specmargin.verbs.plan.several import plan_machines

        check_of_several(outputs)
        several = plan_machines(request, requests)
        return SeveralAnswer(
            request=request, ranked=several.preferred.ranked, compared=None, machines=several, shows_grid=shows_grid
        )
    request = requests[0]
    if outputs is not None and outputs.sps_table is not None:
        check_price_table(request)
    if outputs is not None and outputs.policy is not None:
        check_policy(request)
    ranked = tuple(drafter_plans(request))
    compared = None if request.compare is None else compare(ranked[0], request.compare)
    return PlanAnswer(request=request, ranked=ranked, compared=compared, shows_grid=shows_grid)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanAnswer(Answer[PlanRequest]):
    ranked: tuple[DrafterPlan, ...]  # one per drafter, the best first
    compared: Compared | None  # with what `compare` names
    messages: tuple[str, ...] = ()  # about files that were written
    is_live: bool = False  # a policy was written: the flags are those of a server with the plug-in
    shows_grid: bool = False  # in the terminal and in the JSON

    schema: ClassVar[str] = "specmargin.plan/2"

    @property
    def best(self) -> DrafterPlan:
        return self.ranked[0]

    @property
    def scenario(self) -> Scenario:
        return self.best.plan.scenario

    @property
    def verdict(self) -> str:
        from specmargin.verbs.plan.values import answer_text

        return answer_text(self.best)

    @property
    def rows(self) -> Sequence[PlanRow]:
        """One per batch size, for the best drafter."""
        return self.best.plan.rows

    def flags(self, engine: str | None = None) -> str:
        """The setting to paste: of the engine that was priced, or of another one, which is then priced itself."""
        if engine is None or engine == self.best.engine.name:
            return self.best.config.text
        options = self.request.model_dump(exclude_unset=True) | {"engine": engine, "engine_version": None}
        return plan(read_request(PlanRequest, options)).best.config.text

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.values()["rows"]
        return rows

    def values(self) -> dict[str, Any]:
        from specmargin.verbs.plan.comparison import compared_values
        from specmargin.verbs.plan.values import plan_values

        values = plan_values(self.ranked) | ({"grid": self.grid()} if self.shows_grid else {})
        return values if self.compared is None else values | compared_values(self.compared)

    def grid(self) -> list[dict[str, Any]]:
        """Every batch of the plan at every depth, for the best drafter; depth 0 is an engine without speculation."""
        from specmargin.verbs.plan.depth_grid import grid_rows

        return grid_rows(self.best)

    def resolved(self) -> dict[str, Any]:
        return {"batch": [row.batch for row in self.rows], "context": self.scenario.context}

    def blocks(self) -> Iterator[Block]:
        yield from self._shown(explain=False)

    def explained(self) -> Iterator[Block]:
        yield from self._shown(explain=True)

    def _shown(self, *, explain: bool) -> Iterator[Block]:
        from specmargin.verbs.plan.text import plan_blocks

        yield from plan_blocks(self.ranked, self.compared, explain=explain)
        if self.shows_grid:
            from specmargin.verbs.plan.depth_grid import grid_blocks

            yield from grid_blocks(self.best)
        for message in self.messages:
            yield Line(f"Wrote {message}.")
        if self.is_live and not explain:  # which shows it anyway
            from specmargin.verbs.plan.commands import serve_json

            yield bold("start the server, with the plug-in in its environment (specmargin live-check):")
            serve = serve_json(self.best)
            yield Verbatim(serve["command"])
            yield from map(dim, serve["notes"])

    def chart(self) -> Chart:
        from specmargin.show.figures.payoff import plan_figure

        return plan_figure(self.best.plan, by_context=bool(self.best.by_context)).chart()

    # --- files ---

    def written(self, outputs: Outputs) -> Self:
        if not isinstance(outputs, PlanOutputs):
            return self
        answer = self._with_output(outputs)
        if outputs.plot is not None:
            from specmargin.show.figures.files import save

            save(self.plot(), outputs.plot)
        return answer._with_policy(outputs)._with_price_table(outputs)

    def _with_output(self, outputs: PlanOutputs) -> Self:
        """Rows as CSV, or the engine's configuration; flags that are shown then name the file that was written."""
        path, config = outputs.output, self.best.config
        if path is None:
            return self
        if outputs.grid:
            from specmargin.verbs.plan.depth_grid import write_grid

            write_grid(path, self.grid(), force=outputs.force)
            return self
        if is_table(path):
            write_table(path, self.table(), force=outputs.force)
            return self
        write_text(path, config.file_text or f"{config.text}\n", force=outputs.force)
        return self._with_config(config.with_file(str(path)))

    def _with_policy(self, outputs: PlanOutputs) -> Self:
        if outputs.policy is None:
            return self
        from specmargin.verbs.plan.policy_file import write_policy

        answer = self._with_config(*write_policy(outputs.policy, self.best, force=outputs.force))
        return replace(answer, is_live=bool(answer.best.config.text))

    def _with_price_table(self, outputs: PlanOutputs) -> Self:
        if outputs.sps_table is None:
            return self
        from specmargin.verbs.plan.price_table import write_price_table

        return self._with_config(*write_price_table(outputs.sps_table, self.best, force=outputs.force))

    def _with_config(self, config: EngineConfig, *messages: str) -> Self:
        ranked = (replace(self.best, config=config), *self.ranked[1:])
        return replace(self, ranked=ranked, messages=(*self.messages, *messages))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SeveralAnswer(PlanAnswer):
    """Several GPUs or layouts: the table has all of them; `rows`, `flags` and `best` are of the preferred one."""

    machines: Machines

    schema: ClassVar[str] = "specmargin.plans/1"

    @property
    def verdict(self) -> str:
        return self.machines.verdict

    def table(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.machines.rows]

    def values(self) -> dict[str, Any]:
        return self.machines.values() | ({"grid": self.grid()} if self.shows_grid else {})

    def grid(self) -> list[dict[str, Any]]:
        from specmargin.verbs.plan.depth_grid import grid_rows

        serving = self.machines.serving
        return [{"machine": each.name} | row for each in serving for row in grid_rows(each.ranked[0])]

    def resolved(self) -> dict[str, Any]:
        return {"batch": list(self.machines.batches), "context": self.scenario.context}

    def _shown(self, *, explain: bool) -> Iterator[Block]:
        yield from self.machines.blocks(explain=explain, grid=self.shows_grid)

    def chart(self) -> Chart:
        return self.machines.chart()


def check_of_several(outputs: PlanOutputs | None) -> None:
    """Files of an engine are of one machine."""
    if outputs is None:
        return
    if outputs.policy is not None or outputs.sps_table is not None:
        raise ScenarioError("--policy and --sps-table write the file of one machine: name one GPU")
    if outputs.output is not None and not outputs.grid and not is_table(outputs.output):
        raise ScenarioError(f"{outputs.output}: several GPUs make a table, FILE.csv or FILE.parquet; or name one GPU")
