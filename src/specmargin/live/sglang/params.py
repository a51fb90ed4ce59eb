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

from specmargin.errors import EngineError
from specmargin.live.release import reason
from specmargin.live.sglang.names import KEY, board_folder, logger

if TYPE_CHECKING:
    from specmargin.live.sglang.rounds import SglangRounds


class SpecmarginParams(AdaptiveSpeculativeParams):
    """Implements SGLang's `AdaptiveSpecPolicy`."""

    _rounds: SglangRounds | None = None

    def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
        super().__init__(initial_steps, cfg_path)  # refuses what SGLang refuses
        if cfg_path is not None and _is_configured(Path(cfg_path)):
            self._rounds = _start(Path(cfg_path), super().candidate_steps)

    @property
    def candidate_steps(self) -> list[int]:
        return super().candidate_steps if self._rounds is None else list(self._rounds.steps)

    def get_steps_for_batch(self, batch_size: int) -> int:
        own: Callable[[int], int] = super().get_steps_for_batch
        return own(batch_size) if self._rounds is None else self._rounds.steps_for(batch_size, own)

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """None: no switch now; SGLang asks for the depth before every round."""
        switched: int | None = None
        if self._rounds is not None:
            self._rounds.learn(num_correct_drafts_per_req, batch_size)
        if self._rounds is None or not self._rounds.decides:
            switched = super().on_verify_complete(num_correct_drafts_per_req, batch_size)
        return switched

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        own: list[int] | None = super().cuda_graph_bs_for_step(step)
        if self._rounds is None or own is None:
            return own
        return sorted({*own, *self._rounds.graph_sizes(step, self._cuda_graph_bs)})


def _is_configured(path: Path) -> bool:
    with suppress(Exception):
        return KEY in json.loads(path.read_text(encoding="utf-8"))
    return False


def _start(path: Path, own_steps: list[int]) -> SglangRounds | None:
    """None, with a line in the log, if this rank or another cannot start."""
    engine, board = _metrics()
    rounds, problem = None, None
    try:
        from specmargin.live.sglang.rounds import start  # noqa: PLC0415  # no cost without configuration

        rounds = start(path, own_steps, engine=engine, board=board, log=_tell, warn=logger.warning)
    except Exception as error:
        problem = reason(error)
    try:
        _check_ranks("" if rounds is None else rounds.fingerprint)
    except Exception as error:
        problem = problem or reason(error)
    if rounds is not None and problem is None:
        _tell(rounds.description)
        return rounds
    logger.error("Specmargin: %s. SGLang's own parameters decide.", problem)
    with suppress(Exception):
        from specmargin.live.board import report_failed_start  # noqa: PLC0415

        report_failed_start(board, engine)
    return None


def _check_ranks(fingerprint: str) -> None:
    """Every rank takes part, also one that could not start: ranks that draft to different depths would deadlock."""
    group = get_parallel().tp_group
    if group.world_size > 1 and len(set(group.all_gather_object(fingerprint))) > 1:
        raise EngineError("ranks differ in their CPU, their packages or their files, or one of them could not start")


def _tell(text: str) -> None:
    log_info_on_rank0(logger, text)


def _metrics() -> tuple[str, Path | None]:
    """The name of this engine, and the folder of its board: metrics come from its first rank only."""
    try:
        parallel = get_parallel()
        return str(parallel.dp_rank or 0), board_folder() if parallel.tp_rank == 0 else None
    except Exception:  # ranks are not known
        return "0", None
