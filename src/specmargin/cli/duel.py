"""`specmargin duel`."""

from __future__ import annotations

import typer

from specmargin.app.verbs_schema import DuelRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, DuelRequest)
def duel(request: DuelRequest, json: o.JsonOption = False) -> None:
    """Compare one more sequence with one more draft token.

    Both add one position to the step. The sequence commits a token for certain; the draft token with
    probability alpha, but its experts may be loaded already. Defaults: a free drafter and no KV cache
    (--context 0).

    Example: specmargin duel qwen3.6-35b-a3b --gpu h100 --batch 1 --alpha 0.9
    """
    from specmargin.app.scenarios import scenario_of
    from specmargin.cli import duel_view
    from specmargin.decisions.duel import duel as decide
    from specmargin.decisions.pricer import Pricer

    _, scenario = scenario_of(request)
    pricer = Pricer(scenario)
    pricer.check_memory()
    duel_view.show(pricer, decide(pricer, batch=request.batch, alpha=request.alpha), json=json)
