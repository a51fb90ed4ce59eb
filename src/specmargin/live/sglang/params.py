"""SGLang's adaptive parameters, with the depth of each round chosen by a policy of Specmargin's.

SGLang makes them from the file of `--speculative-adaptive-config`. Without Specmargin's key there, and after a fault,
they are SGLang's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.srt.utils import log_info_on_rank0

from specmargin.live.release import reason
from specmargin.live.sglang.names import KEY, board_folder, logger

if TYPE_CHECKING:
    from specmargin.live.sglang.rounds import Rounds


class SpecmarginParams(AdaptiveSpeculativeParams):
    """Implements SGLang's `AdaptiveSpecPolicy`."""

    _rounds: Rounds | None = None

    def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
        super().__init__(initial_steps, cfg_path)  # refuses what SGLang refuses
        if cfg_path is None or KEY not in json.loads(Path(cfg_path).read_text(encoding="utf-8")):
            return
        engine, board = _metrics()
        try:
            from specmargin.live.sglang.rounds import start  # noqa: PLC0415  # no cost without configuration

            self._rounds = start(
                Path(cfg_path),
                super().candidate_steps,
                engine=engine,
                board=board,
                warn=logger.warning,
                tell=lambda text: log_info_on_rank0(logger, text),
            )
        except Exception as error:
            logger.error("Specmargin: %s. SGLang's own parameters decide.", reason(error))
            _report_fault(engine, board)

    @property
    def candidate_steps(self) -> list[int]:
        return super().candidate_steps if self._rounds is None else list(self._rounds.steps)

    def get_steps_for_batch(self, batch_size: int) -> int:
        own: Callable[[int], int] = super().get_steps_for_batch
        return own(batch_size) if self._rounds is None else self._rounds.steps_for(batch_size, own)

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """None: no switch now; SGLang asks for the depth before every round."""
        if self._rounds is None or self._rounds.is_off:
            switched: int | None = super().on_verify_complete(num_correct_drafts_per_req, batch_size)
            return switched
        self._rounds.learn(num_correct_drafts_per_req, batch_size)
        return None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        own: list[int] | None = super().cuda_graph_bs_for_step(step)
        if self._rounds is None or own is None:
            return own
        return sorted({*own, *self._rounds.graph_sizes(step, self._cuda_graph_bs)})


def _metrics() -> tuple[str, Path | None]:
    """The name of this engine, and the folder of its board: metrics come from its first rank only."""
    try:
        parallel = get_parallel()
        return str(parallel.dp_rank or 0), board_folder() if parallel.tp_rank == 0 else None
    except Exception:  # ranks are not known
        return "0", None


def _report_fault(engine: str, board: Path | None) -> None:
    """Count the configuration fault in the metrics."""
    with suppress(Exception):
        from specmargin.live.board import write_fault_board  # noqa: PLC0415

        if board is not None:
            write_fault_board(board / f"engine-{engine}.board", "configuration")
