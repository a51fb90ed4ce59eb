"""vLLM's scheduler with one more decision per step. If it fails, the step runs as in plain vLLM.

The depth chosen in step t is drafted at its end and verified in step t + 1. Requests may have limits of their own:
truncating a request's draft tokens before the step is scheduled shortens its run; the remaining tokens are those that
vLLM would verify first.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from specmargin.live.board import report_failed_start
from specmargin.live.driver import Agreed, Driver
from specmargin.live.driver_builder import build_driver
from specmargin.live.gate_messages import ORDER
from specmargin.live.guard import reason
from specmargin.live.narrator import Narrator
from specmargin.live.sequences import StepDone
from specmargin.live.settings_schema import GateKind, Mode, Settings
from specmargin.live.vllm.engine_config import bank_identity, engine_settings
from specmargin.live.vllm.graphs import FLAG
from specmargin.live.vllm.log import logger
from specmargin.live.vllm.names import KEY
from specmargin.live.vllm.outcomes import step_done
from specmargin.live.vllm.voting import Voter, install, refusal, same_on_all_ranks
from specmargin.policies.vote import RankVote


class _Observer:
    """Mixin before vLLM's class in the method resolution order: counts steps and outcomes. It uses only what feature
    observe lists (`parts.toml`), passes on whatever else vLLM gives to a method, and decides nothing."""

    voter: Voter | None = None  # of a data-parallel rank
    _driver: Driver | None = None
    _disabled: Driver | None = None  # after too many faults
    _narrator: Narrator | None = None
    _last_done: float = math.nan  # end of the last step; NaN while idle
    _started: float = math.nan

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self._start()
        except Exception as error:  # the engine must start
            self._driver = None
            if self.voter is not None:
                self.voter.problem = "its plug-in did not start"
            logger.error("Specmargin: %s. The engine runs with the plug-in disabled.", error)
            with suppress(Exception):
                folder = Path(self.vllm_config.additional_config[KEY]["board"])
                report_failed_start(folder, str(self.vllm_config.parallel_config.data_parallel_index))

    def _start(self: Any) -> None:
        config = self.vllm_config
        settings = engine_settings(config)
        if config.speculative_config is None or self.num_spec_tokens == 0:
            logger.info("Specmargin: no speculation is configured, so there is nothing to decide.")
            return
        if config.parallel_config.data_parallel_size > 1 and settings.mode is not Mode.OBSERVE:
            settings = self._for_ranks(settings)
        self._driver = self._make_driver(settings)
        self._narrator = Narrator(driver=self._driver, every_seconds=settings.log_seconds, log=logger.info)
        logger.info("Specmargin: %s.", _describe(settings, self._driver))

    def _for_ranks(self: Any, settings: Settings) -> Settings:
        """vLLM disables its own table with data-parallel ranks too: ranks with different depths deadlock."""
        logger.warning("Specmargin: data-parallel ranks must draft to the same depth, so it only observes.")
        return settings.model_copy(update={"mode": Mode.OBSERVE})

    def _make_driver(self: Any, settings: Settings, **decides: Any) -> Driver:
        config = self.vllm_config
        return build_driver(
            settings,
            max_depth=self.num_spec_tokens,
            identity=bank_identity(config),
            engine=str(config.parallel_config.data_parallel_index),
            log=logger.warning,
            **{"candidates": None} | decides,
        )

    # --- requests ---

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._driver is not None:
            self._driver.guard.call("request", None, self._add, self._driver, request)
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    @staticmethod
    def _add(driver: Driver, request: Any) -> None:
        parameters = request.sampling_params
        driver.add(request.request_id, None if parameters is None else parameters.extra_args)

    def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if self._driver is not None:
            self._driver.drop(request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    # --- steps ---

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._driver is not None:
            self._started = time.perf_counter()
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def update_draft_token_ids(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Drafts have confidences if the workers capture them."""
        if self._driver is not None and self._driver.capture is not None:
            drafts = next((one for one in (*args, *kwargs.values()) if hasattr(one, "confidence")), None)
            self._driver.drafts(() if drafts is None else drafts.req_ids, getattr(drafts, "confidence", None))
        return super().update_draft_token_ids(*args, **kwargs)  # type: ignore[misc]

    def update_from_output(
        self: Any, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput, *args: Any, **kwargs: Any
    ) -> Any:
        driver, given = self._driver, (scheduler_output, model_runner_output, *args)
        if driver is None:
            return super().update_from_output(*given, **kwargs)  # type: ignore[misc]
        # Read before vLLM removes finished requests.
        step = driver.guard.call(
            "outcome", None, step_done, scheduler_output, model_runner_output, self.requests, driver
        )
        outputs = super().update_from_output(*given, **kwargs)  # type: ignore[misc]
        if driver.guard.off:
            self._show_off(driver)
        else:
            driver.guard.call("outcome", None, self._finish, driver, step, scheduler_output)
        return outputs

    def _show_off(self: Any, driver: Driver) -> None:
        """The plug-in is disabled: the metrics say so, and nothing else runs."""
        with suppress(Exception):
            driver.board.show_guard(driver.guard)
        self._driver = None
        self._disabled = driver  # closed at shutdown: captured rounds are written

    def _seconds(self: Any, now: float) -> float:
        """Of the step that ends now."""
        begun = self._last_done if not math.isnan(self._last_done) else self._started
        self._last_done = now if self.running else math.nan
        return float(now - begun)

    def _finish(self: Any, driver: Driver, step: StepDone | None, scheduled: SchedulerOutput) -> None:
        now = time.perf_counter()
        if step is None:
            step = StepDone.nothing()
        step.seconds = self._seconds(now)
        driver.done(step, self._drafted(scheduled))
        if not self.running:
            driver.settle()
        if self._narrator is not None:
            self._narrator.look(now)

    def _drafted(self: Any, scheduled: SchedulerOutput) -> int:
        """How deep the step drafts, as far as it can be seen here: as deep as the drafts that it verifies."""
        return max(map(len, scheduled.scheduled_spec_decode_tokens.values()), default=0)

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        for driver in (self._driver, self._disabled):
            if driver is not None:
                with suppress(Exception):
                    driver.close()
        return super().shutdown(*args, **kwargs)  # type: ignore[misc]


class _Decisions(_Observer):
    """Chooses the depth of every step too."""

    def _make_driver(self: Any, settings: Settings, **decides: Any) -> Driver:
        config, lookup = self.vllm_config, self.dynamic_sd_lookup
        graphs = config.compilation_config.cudagraph_mode
        full = graphs is not None and graphs.has_full_cudagraphs()
        decides |= {
            "candidates": None if lookup is None or not full else tuple(sorted(set(lookup))),
            "graph_positions": _graph_positions(config.compilation_config),
            "device_gate": _is_gated(config, settings),
        }
        if self.voter is not None and self.voter.problem is None:
            voting: Driver = self._make_voting_driver(self.voter, settings, decides)
            return voting
        driver: Driver = super()._make_driver(settings, **decides)
        if settings.mode is not Mode.OBSERVE:
            self._vary_depth()
        return driver

    def _vary_depth(self: Any) -> None:
        """Tells vLLM that the depth varies, so that it adds no padding drafts to new requests."""
        if self.dynamic_sd_lookup is None:
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)

    # --- data-parallel ranks ---

    def _for_ranks(self: Any, settings: Settings) -> Settings:
        """The settings with which this rank votes, or only observes."""
        self.voter = voter = Voter(static_depth=self.num_spec_tokens, begun=self._votes_begin)
        try:
            install()
            voter.same = same_on_all_ranks(settings, self.num_spec_tokens)
            voter.problem = refusal(self.vllm_config, settings)
        except Exception as error:  # another release, or a policy that cannot be read
            voter.problem = reason(error)
        return settings if voter.problem is None else super()._for_ranks(settings)

    def _make_voting_driver(self: Any, voter: Voter, settings: Settings, decides: dict[str, Any]) -> Driver:
        agreed = Agreed(
            depth=lambda: voter.static_depth if voter.depth is None else voter.depth,
            loads=lambda: () if voter.ballot is None else voter.ballot.loads,
        )
        driver: Driver = super()._make_driver(settings, **decides, agreed=agreed)
        voter.rules, voter.own_vote = driver.vote_rules, self._own_vote
        return driver

    def _own_vote(self: Any) -> RankVote | None:
        """A rank that only reads prompts has no load."""
        driver = self._driver
        return None if driver is None else driver.vote(sum(not request.is_prefill_chunk for request in self.running))

    def _votes_begin(self: Any, why_not: str | None) -> None:
        if why_not is None:
            self._vary_depth()
            logger.info("Specmargin: data-parallel ranks vote on the depth.")
            return
        logger.warning("Specmargin: no votes among ranks, depth %d: %s.", self.num_spec_tokens, why_not)
        if self._driver is not None:
            self._driver.show_observing()

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        driver = self._driver
        if driver is not None and driver.limits_requests:
            driver.guard.call("verify decision", None, self._truncate_drafts, driver)
        return super().schedule(*args, **kwargs)

    def _truncate_drafts(self: Any, driver: Driver) -> None:
        decoding = [request for request in self.running if not request.is_prefill_chunk]
        drafted = [len(request.spec_token_ids) for request in decoding]
        depths = driver.limits([request.request_id for request in decoding], drafted)
        if depths is None or depths == drafted:
            return
        for request, depth, length in zip(decoding, depths, drafted, strict=True):
            if depth < length:
                request.spec_token_ids = request.spec_token_ids[:depth]

    def _update_after_schedule(self: Any, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        driver = self._driver
        if driver is not None:
            driver.guard.call("depth decision", None, self._set_depth, driver, scheduler_output)
        if self.voter is not None and self.voter.depth is not None:
            # Whatever happened to the driver: ranks with different depths deadlock.
            scheduler_output.num_spec_tokens_to_schedule = self.voter.depth
        return super()._update_after_schedule(scheduler_output, *args, **kwargs)  # type: ignore[misc]

    @staticmethod
    def _set_depth(driver: Driver, scheduled: SchedulerOutput) -> None:
        depth = driver.draft_depth(scheduled.num_scheduled_tokens)
        if depth is not None:
            scheduled.num_spec_tokens_to_schedule = depth
        if driver.device_gate:
            depth = int(scheduled.num_spec_tokens_to_schedule or 0)
            setattr(scheduled, ORDER, driver.gate_order(len(scheduled.num_scheduled_tokens), depth))

    def _drafted(self: Any, scheduled: SchedulerOutput) -> int:
        return int(scheduled.num_spec_tokens_to_schedule)


class SpecmarginScheduler(_Decisions, Scheduler):
    pass


class SpecmarginAsyncScheduler(_Decisions, AsyncScheduler):
    """With async scheduling drafts stay in the worker."""


class ObservingScheduler(_Observer, Scheduler):
    """In releases without what depth control needs."""


class ObservingAsyncScheduler(_Observer, AsyncScheduler):
    pass


def _is_gated(config: Any, settings: Settings) -> bool:
    """Whether the workers gate drafts, as far as the configuration tells."""
    requested = bool(getattr(config.speculative_config, FLAG, False)) and settings.gate_kind is not GateKind.OFF
    v2_runner = bool(getattr(config, "use_v2_model_runner", False))
    return requested and v2_runner and bool(getattr(config.parallel_config, "worker_extension_cls", ""))


def _graph_positions(compilation: Any) -> int | None:
    """Positions of the largest captured CUDA graph; None without graphs."""
    mode, largest = compilation.cudagraph_mode, getattr(compilation, "max_cudagraph_capture_size", None)
    return int(largest) if mode is not None and mode.value != 0 and largest else None


def _describe(settings: Settings, driver: Driver) -> str:
    """The active features, in one sentence for the log."""
    parts = [f"mode {settings.mode}"]
    if driver.policy is None:
        parts.append("no policy, so it only observes")
    elif driver.agreed is not None:
        parts.append("depth by a vote of all data-parallel ranks")
    elif driver.device_gate:
        parts.append("depth by learned acceptance; drafts are gated on the GPU if the workers say so")
    elif settings.mode is not Mode.SCHEDULE:
        parts.append("depth by learned acceptance; drafts are verified in full")
    if driver.capture is not None:
        parts.append(f"capturing to {driver.capture.folder}")
    return "; ".join(parts)
