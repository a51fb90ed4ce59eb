"""`specmargin duel`."""

from __future__ import annotations

import typer

from specmargin.app.verbs_schema import DuelRequest
from specmargin.cli import options as o
from specmargin.cli.requests import command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, DuelRequest)
def duel(
    request: DuelRequest, output: o.TableOption = None, force: o.ForceOption = False, json: o.JsonOption = False
) -> None:
    """Compare one more sequence with one more draft token.

    Both add one position to the step. The sequence commits a token for certain; the draft token with
    probability alpha, but its experts may be loaded already. Defaults: a free drafter and no KV cache
    (--context 0).

    Example: specmargin duel qwen3.6-35b-a3b --gpu h100 --batch 1 --alpha 0.9
    """
    from specmargin.app.dueling import duel_json, duel_of, duel_rows
    from specmargin.cli import duel_view, render

    o.check_table(output, force=force)
    answer = duel_of(request)
    o.write_rows(output, duel_rows(answer), force=force)
    if json:
        render.json_out(duel_json(answer))
    else:
        duel_view.show(answer)
