"""SGLang's adaptive parameters, with the depth of each round chosen by a policy of Specmargin's.

SGLang makes them from the file of `--speculative-adaptive-config`. Without Specmargin's key there, and after a fault,
they are SGLang's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.srt.utils import log_info_on_rank0

from specmargin.errors import EngineError
from specmargin.live.guard import reason
from specmargin.live.parts import Feature, Report, check_installed
from specmargin.live.sglang.names import KEY, board_folder, logger

if TYPE_CHECKING:
    from specmargin.live.sglang.rounds import SglangRounds


class SpecmarginParams(AdaptiveSpeculativeParams):
    """Implements SGLang's `AdaptiveSpecPolicy`. Methods pass on whatever SGLang gives them: SGLang makes this class
    wherever the plug-in is installed, and its parts (`parts.toml`) are checked only where it is configured."""

    _rounds: SglangRounds | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # refuses what SGLang refuses
        path = _configured_path(*args, **kwargs)
        if path is not None:
            self._rounds = _start(path, lambda: super(SpecmarginParams, self).candidate_steps)

    @property
    def candidate_steps(self) -> list[int]:
        return super().candidate_steps if self._rounds is None else list(self._rounds.steps)

    def get_steps_for_batch(self, *args: Any, **kwargs: Any) -> int:
        own: Callable[..., int] = super().get_steps_for_batch
        return own(*args, **kwargs) if self._rounds is None else self._steps_for_batch(own, *args, **kwargs)

    def _steps_for_batch(self, own: Callable[..., int], batch_size: int, *args: Any, **kwargs: Any) -> int:
        assert self._rounds is not None
        return self._rounds.steps_for(batch_size, lambda batch: own(batch, *args, **kwargs))

    def on_verify_complete(self, *args: Any, **kwargs: Any) -> int | None:
        """None: no switch now; SGLang asks for the depth before every round."""
        switched: int | None = None
        if self._rounds is not None:
            self._learn(*args, **kwargs)
        if self._rounds is None or not self._rounds.decides:
            switched = super().on_verify_complete(*args, **kwargs)
        return switched

    def _learn(self, num_correct_drafts_per_req: list[int], batch_size: int, *_: Any, **__: Any) -> None:
        assert self._rounds is not None
        self._rounds.learn(num_correct_drafts_per_req, batch_size)

    def cuda_graph_bs_for_step(self, *args: Any, **kwargs: Any) -> list[int] | None:
        own: list[int] | None = super().cuda_graph_bs_for_step(*args, **kwargs)
        if self._rounds is None or own is None or not self._rounds.decides:
            return own
        return sorted({*own, *self._graph_sizes(*args, **kwargs)})

    def _graph_sizes(self, step: int, *_: Any, **__: Any) -> list[int]:
        assert self._rounds is not None
        return self._rounds.graph_sizes(step, self._cuda_graph_bs)


def _configured_path(*args: Any, **kwargs: Any) -> Path | None:
    """The file of `--speculative-adaptive-config`, if it has Specmargin's key."""
    path = kwargs.get("cfg_path", next(iter(args[1:]), None))
    return Path(path) if isinstance(path, str) and _is_configured(Path(path)) else None


def _is_configured(path: Path) -> bool:
    with suppress(Exception):
        return KEY in json.loads(path.read_text(encoding="utf-8"))
    return False


def _start(path: Path, own_steps: Callable[[], list[int]]) -> SglangRounds | None:
    """None, with a line in the log, if this rank or another cannot start."""
    engine, board = _metrics()
    rounds, problem = None, None
    try:
        from specmargin.live.sglang.rounds import start  # noqa: PLC0415  # no cost without configuration

        decides = _checked_release().has(Feature.DEPTH)
        rounds = start(path, own_steps(), engine=engine, board=board, log=_tell, warn=logger.warning, decides=decides)
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


def _checked_release() -> Report:
    """Raises EngineError where not even observing is possible."""
    report = check_installed("sglang")
    _tell(f"Specmargin: {report.summary}.")
    if not report.has(Feature.OBSERVE):
        raise EngineError(report.losses[0])
    for loss in report.losses:
        logger.warning("Specmargin: %s.", loss)
    return report


def _check_ranks(fingerprint: str) -> None:
    """Every rank takes part, also one that could not start: ranks that draft to different depths would deadlock."""
    group = get_parallel().tp_group
    if group.world_size > 1 and len(set(group.all_gather_object(fingerprint))) > 1:
        raise EngineError("ranks differ in their CPU, their packages or their files, or one of them could not start")


def _tell(text: str) -> None:
    log_info_on_rank0(logger, text)


def _metrics() -> tuple[str, Path | None]:
    """The name of this engine, and the folder of its board: metrics come from its first rank only."""
    engine = "0"
    try:
        parallel = get_parallel()
        with suppress(Exception):  # not every release has it
            engine = str(parallel.dp_rank or 0)
        return engine, board_folder() if parallel.tp_rank == 0 else None
    except Exception:  # ranks are not known
        return engine, None
