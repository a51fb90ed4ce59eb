"""From a query to the inputs of figures and texts; results that a control does not affect are cached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from specmargin.answers.request_schema import ScenarioRequest
from specmargin.answers.scenarios import early_stop_of, scenario_of
from specmargin.caches import made_once
from specmargin.catalog.drafters import DraftChoice, available_kinds, find_acceptance
from specmargin.decisions.certainty import SpeedupRange
from specmargin.decisions.next_token import NextToken, next_token
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.rows import PlanRow
from specmargin.decisions.scenario import Scenario
from specmargin.decisions.setting import Setting
from specmargin.routing.local import LocalRouting
from specmargin.show.explorer.request_schema import PageRequest
from specmargin.show.explorer.schema import UPLOAD, Query
from specmargin.show.explorer.uploads import Kind, Upload, Uploads
from specmargin.verbs.plan import PlanAnswer
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plan, row_and_range
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.values import plan_values

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds

_CACHED = 32


@dataclass(frozen=True)
class View:
    """One scenario, evaluated lazily."""

    request: PageRequest
    layer: int | None = None
    bank: Upload | None = None
    routing_file: Upload | None = None

    @cached_property
    def _pair(self) -> tuple[DraftChoice, Pricer]:
        return pricer_of(self.plan_request.scenario_only())

    @cached_property
    def plan_request(self) -> PlanRequest:
        return self.request.as_plan()

    @property
    def batch(self) -> int:
        """The batch marked in figures: the one chosen, or that of the load."""
        loaded = self.plan_request.isl is not None
        return self.answer.headline_row.batch if loaded else self.request.batch

    @property
    def max_depth(self) -> int:
        return self.request.depth

    @property
    def choice(self) -> DraftChoice:
        return self._pair[0]

    @property
    def pricer(self) -> Pricer:
        return self._pair[1]

    @property
    def scenario(self) -> Scenario:
        return self.pricer.scenario

    @property
    def setting(self) -> Setting:
        """That of the printed flags."""
        return self.answer.plan.setting

    @property
    def answer(self) -> DrafterPlan:
        return _answer(self.plan_request)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What `specmargin plan --json` prints for the same scenario."""
        return {"schema": PlanAnswer.schema} | plan_values([self.answer])

    @cached_property
    def row_and_range(self) -> tuple[PlanRow, SpeedupRange]:
        """What the plan's flags give at the marked batch."""
        return row_and_range(self.answer, self.batch)

    @property
    def row(self) -> PlanRow:
        return self.row_and_range[0]

    @cached_property
    def next_tokens(self) -> NextToken:
        """The price of one more draft token by row of the plan, and at the marked batch (the last entry)."""
        rows = [*self.answer.plan.rows, self.row]
        depths = np.array([row.depth for row in rows])
        return next_token(self.pricer, [row.batch for row in rows], depths, self.setting)

    @property
    def local_routing(self) -> LocalRouting | None:
        """Popularity and locality, of one layer if one is chosen."""
        pools = self.scenario.architecture.pools
        local = self.scenario.routing.local(pools[0]) if pools else None
        return local if local is None or self.layer is None else one_layer(local, self.layer)

    @cached_property
    def rounds(self) -> Rounds | None:
        """The rounds of the uploaded bank; none for a profile."""
        if self.bank is None or self.bank.path.suffix == ".json":
            return None
        return read_rounds(self.bank)

    def with_drafter(self, kind: str) -> View:
        """The same with another drafter and its own bundled acceptance."""
        return replace(self, request=self.request.model_copy(update={"drafter": kind, "acceptance": None}), bank=None)

    @property
    def rivals(self) -> tuple[str, str] | None:
        """The autoregressive head and the block head to compare."""
        kinds = available_kinds(self.scenario.architecture)
        return ("mtp" if "mtp" in kinds else "eagle", "dflash") if "dflash" in kinds else None


def one_layer(local: LocalRouting, layer: int) -> LocalRouting:
    chosen = slice(min(layer, local.layers - 1), min(layer, local.layers - 1) + 1)
    return replace(
        local,
        popularity_by_layer_expert=local.popularity_by_layer_expert[chosen],
        log_miss_by_run_layer_expert=local.log_miss_by_run_layer_expert[:, chosen],
        neighbour_overlap_by_layer=local.neighbour_overlap_by_layer[chosen],
    )


def view_of(query: Query, uploads: Uploads) -> View:
    bank, acceptance = _uploaded(query.acceptance, "acceptance", uploads)
    routing_file, routing = _uploaded(query.routing, "routing", uploads)
    _, model = _uploaded(query.model, "config", uploads)
    files = {"model": model or query.model, "acceptance": acceptance, "routing": routing}
    fields = {name: getattr(query, name) for name in PageRequest.model_fields} | files
    unset = {"memory_utilization"} - query.model_fields_set  # the engine's own share
    request = PageRequest.model_construct(_fields_set=fields.keys() - unset, **fields)  # validated by `Query` already
    return View(request=request, layer=query.layer, bank=bank, routing_file=routing_file)


def with_uploads(given: dict[str, Any], uploads: Uploads) -> dict[str, Any]:
    """Fields of a request, with paths in place of the ids of uploaded files."""
    kinds: dict[str, Kind] = {"model": "config", "acceptance": "acceptance", "routing": "routing"}
    return given | {name: _uploaded(given[name], kind, uploads)[1] for name, kind in kinds.items() if name in given}


def _uploaded(text: str | None, kind: Kind, uploads: Uploads) -> tuple[Upload | None, str | None]:
    """The file behind `upload:ID[:CATEGORY]`, and the text with its path in place of the id."""
    match = UPLOAD.fullmatch(text) if text is not None else None
    if match is None:
        return None, text
    upload = uploads.find(match.group(1), kind)
    category = f":{match.group(2)}" if match.group(2) else ""
    return upload, f"{upload.path}{category}"


@made_once(maxsize=_CACHED)
def _base(request: ScenarioRequest) -> tuple[DraftChoice, Pricer]:
    choice, scenario = scenario_of(request)
    return choice, Pricer(scenario)


@made_once(maxsize=_CACHED)
def pricer_of(request: ScenarioRequest) -> tuple[DraftChoice, Pricer]:
    """Cached; requests that differ only in acceptance or context share their prices."""
    choice, base = _base(request.model_copy(update={"acceptance": None, "context": 0}))
    pricer = base.with_context(float(request.context))
    pricer.check_memory()
    if request.acceptance is None:
        return choice, pricer
    survival = find_acceptance(request.acceptance, choice, pricer.scenario.architecture)
    return choice, pricer.with_survival(survival, early_stop_of(request, choice, survival))


@made_once(maxsize=_CACHED)
def _answer(request: PlanRequest) -> DrafterPlan:
    choice, pricer = pricer_of(request.scenario_only())
    return drafter_plan(choice, pricer, request)


@made_once(maxsize=4)
def read_rounds(bank: Upload) -> Rounds:
    from specmargin.acceptance.bank import read_bank  # noqa: PLC0415

    return read_bank([bank.path])
