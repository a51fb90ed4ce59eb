"""One engine in one process: reads a job from a JSON file and writes its result. Run by `tests/live/conftest.py`.

vLLM's CPU build cannot start twice in a process once Numba is loaded, and a fault must not affect the next test.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_PER_STEP = ("per_step_accepted", "per_step_drafted")


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if job["multiprocess"] else "0"
    from vllm import LLM  # noqa: PLC0415 (after the environment is set)

    engine = LLM(**job["engine"])
    if job["fault"]:
        _break(engine, job["fault"])
    _serve(engine, job)


def _serve(engine: Any, job: dict[str, Any]) -> None:
    from prometheus_client import generate_latest  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415

    tokens, requests = [], []
    for batch in job["batches"]:
        parameters = [
            SamplingParams(
                temperature=job["temperature"],
                seed=0 if job["temperature"] else None,
                max_tokens=job["max_tokens"],
                ignore_eos=True,
                extra_args=request.get("extra_args"),
            )
            for request in batch
        ]
        prompts = [{"prompt_token_ids": request["prompt"]} for request in batch]
        for output in engine.generate(prompts, parameters, use_tqdm=False):
            tokens.append(list(output.outputs[0].token_ids))
            metrics_of_request = output.outputs[0].spec_decode_metrics
            requests.append(
                None if metrics_of_request is None else {name: getattr(metrics_of_request, name) for name in _PER_STEP}
            )
        if job["after_batch"] == "remove capture":
            import shutil  # noqa: PLC0415

            shutil.rmtree(job["engine"]["additional_config"]["specmargin"]["capture"]["folder"], ignore_errors=True)
    metrics = generate_latest().decode()
    result = {"tokens": tokens, "requests": requests, "metrics": metrics}
    _shut_down(engine)
    time.sleep(job["linger_seconds"])
    Path(job["result"]).write_text(json.dumps(result))


def _shut_down(engine: Any) -> None:
    core = engine.llm_engine.engine_core
    core.shutdown()


def _break(engine: Any, fault: str) -> None:
    """Break the policy or its signals, in the engine's process."""
    import numpy as np  # noqa: PLC0415

    driver = engine.llm_engine.engine_core.engine_core.scheduler._driver
    policy = driver.policy

    def wrong(*_: Any) -> Any:
        match fault:
            case "raises":
                raise ZeroDivisionError("injected")
            case "nonsense":
                return np.array([[1e9, -3.5]])
            case "sleeps":
                time.sleep(0.05)
                return None
        raise ValueError(fault)

    match fault:
        case "raises" | "nonsense" | "sleeps":
            policy.draft = wrong
            policy.verify = wrong
            policy.observe = wrong if fault == "raises" else policy.observe
        case "NaN confidence":
            _replace_confidence(driver, lambda rows: np.full_like(rows, np.nan))
        case "missing confidence":
            _replace_confidence(driver, lambda _: None)
        case "misshapen confidence":
            _replace_confidence(driver, lambda rows: rows[:-1])
        case _:
            raise ValueError(fault)


def _replace_confidence(driver: Any, change: Any) -> None:
    drafts = driver.drafts
    driver.drafts = lambda names, rows, seconds: drafts(names, None if rows is None else change(rows), seconds)


if __name__ == "__main__":
    main(sys.argv[1])
