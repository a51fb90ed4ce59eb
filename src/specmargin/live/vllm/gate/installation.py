"""Puts Specmargin's gate into vLLM's second runner, or keeps the server running where vLLM refuses one.

vLLM raises where a model's attention or the settings do not support adaptive verification, and the server would not
start. Here such a model runs with depth control only, and the log says why.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from vllm.v1.worker.gpu import model_runner

from specmargin.live.gate_messages import ORDER, GateOrder
from specmargin.live.gate_prices import gate_prices
from specmargin.live.guard import Guard
from specmargin.live.hooks import around
from specmargin.live.policy_schema import read_policy
from specmargin.live.settings_schema import GateKind, Settings
from specmargin.live.vllm.engine_config import engine_settings
from specmargin.live.vllm.gate.manager import SpecmarginVerificationManager
from specmargin.live.vllm.log import attempt, logger

_NOT_ORDERED = GateOrder()
_MISREAD = "draft models with FlashAttention need runs of equal length"


_initializing: list[Any] = []  # the runner whose KV cache is being initialised: the factory is not told


@around(model_runner, "maybe_create_adaptive_verification_manager")
def _create_manager(create: Any, **kwargs: Any) -> Any:
    return _create(create, _initializing[-1] if _initializing else None, kwargs)


@around(model_runner.GPUModelRunner, "initialize_kv_cache")
def _initialized(initialize: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    _initializing.append(runner)
    try:
        return initialize(runner, *args, **kwargs)
    finally:
        _initializing.pop()


@around(model_runner.GPUModelRunner, "execute_model")
def _ordered(execute: Any, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
    manager = getattr(runner, "adaptive_verification", None)
    if isinstance(manager, SpecmarginVerificationManager):
        manager.order = getattr(scheduler_output, ORDER, _NOT_ORDERED)
        manager.guard.step_done()
    return execute(runner, scheduler_output, *args, **kwargs)


def _create(create: Any, runner: Any, kwargs: dict[str, Any]) -> Any:
    """vLLM's manager, Specmargin's in its place, or None where vLLM refuses one that Specmargin asked for."""
    settings = _settings(kwargs.get("vllm_config"))
    try:
        if settings is not None and settings.gate_kind is not GateKind.OFF and _misreads_runs(runner, kwargs):
            raise ValueError(_MISREAD)
        manager = create(**kwargs)
    except Exception as error:
        if settings is None or settings.gate_kind is GateKind.OFF or runner is None:
            raise  # asked for by the user alone
        disable(runner)
        logger.warning_once("Specmargin: drafts are not gated, only their depth is controlled. vLLM says: %s", error)
        return None
    if manager is None or settings is None or settings.gate_kind is GateKind.OFF:
        return manager
    return attempt("vLLM's own gate is used", manager, _ours, settings, runner, kwargs)


def _misreads_runs(runner: Any, kwargs: dict[str, Any]) -> bool:
    """With a gate, a draft model and FlashAttention the server stopped on an H200: an id outside of the vocabulary.
    Most probably (read, not measured) because vLLM 0.32 sizes a draft model's first pass by runs of equal length.
    Triton's attention takes no such size; heads (EAGLE, MTP) take the target's."""
    if getattr(getattr(runner, "speculative_config", None), "method", None) != "draft_model":
        return False
    groups = [group for row in kwargs.get("attn_groups") or () for group in row]
    return any("FLASH_ATTN" in group.backend.get_name() for group in groups)


def _settings(config: Any) -> Settings | None:
    """None: the plug-in is not configured, or not as it should be, which the scheduler reports."""
    with suppress(Exception):
        return engine_settings(config)
    return None


def _ours(settings: Settings, runner: Any, kwargs: dict[str, Any]) -> SpecmarginVerificationManager:
    states = kwargs["req_states"]
    file = None if settings.policy is None else read_policy(settings.policy)
    prices = None if file is None else gate_prices(file, states.num_speculative_steps)
    kind = settings.gate_kind
    manager = SpecmarginVerificationManager(
        states,
        kwargs["query_start_loc"],
        kwargs["num_bonus_tokens"],
        max_total_logits=kwargs["max_total_logits"],
        kind=kind,
        curve=settings.gate_curve,
        prices=prices,
        # No clock: a slow rank must not decide differently.
        guard=Guard(log=logger.warning, faults_in_a_row=settings.faults_in_a_row, clock=lambda: 0.0),
    )
    native = kind is GateKind.NATIVE
    manager.context = None if file is None else int(file.context)
    if file is not None and not native and runner is not None:
        manager.estimator = getattr(runner.speculator, "acceptance_estimator", None)
        manager.calibrator = file.logistic
    whose = f"vLLM's gate, costs: {settings.gate_curve}" if native else "Specmargin's gate"
    logger.info_once("Specmargin: how much of each draft is verified is decided on the GPU (%s).", whose)
    return manager


def disable(runner: Any) -> None:
    """Clear what adaptive verification set before vLLM found that the model does not support it."""
    speculator, sampler = runner.speculator, runner.rejection_sampler
    if speculator is not None:
        speculator.enable_adaptive_verification = False
        speculator.use_acceptance_estimator = False
        speculator.acceptance_estimator = None
    if sampler is not None:
        sampler.enable_adaptive_verification = False
    runner.speculative_config.enable_adaptive_verification = False
