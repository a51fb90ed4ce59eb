"""vLLM's scheduler on a host that is slow between steps, by a fixed time; `--scheduler-cls` takes it."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

SECONDS = "SPECMARGIN_SLOW_HOST_SECONDS"


class SlowHost(Scheduler):  # type: ignore[misc]
    def schedule(self, *arguments: Any, **options: Any) -> Any:
        time.sleep(float(os.environ[SECONDS]))
        return super().schedule(*arguments, **options)
