"""From a request of `design` to the priced variants of a model's experts."""

from __future__ import annotations

from specmargin.answers.scenarios import scenario_of
from specmargin.app.verbs_schema import DesignRequest
from specmargin.catalog.lookup import find_device
from specmargin.catalog.prices import law_book
from specmargin.decisions.design import Design, Space, Wrapper, explore
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.setting import Setting
from specmargin.modes import Hold

# Few pairs have equal total parameters, so more are tried.
_PER_TOKEN = {Hold.ACTIVE: (2, 4, 8, 16), Hold.TOTAL: tuple(range(1, 21))}
_SHARES = (0.0, 0.25, 0.5)


def explore_design(request: DesignRequest, *, progress: Wrapper) -> Design:
    space = Space(
        hold=request.hold,
        experts=request.experts,
        experts_per_token=request.experts_per_token or _PER_TOKEN[request.hold],
        shared_shares=request.shared if request.shared or request.hold is Hold.TOTAL else _SHARES,
    )
    prices = request.prices or ("datasheet" if law_book(find_device(request.gpu)) is None else "laws")
    _, scenario = scenario_of(request.model_copy(update={"prices": prices}))
    pricer = Pricer(scenario)
    pricer.check_memory()
    setting = Setting.of(scenario, max_depth=request.depth)
    return explore(pricer, space, setting, batch=request.batch, progress=progress)
