"""A vLLM whose classes have changed is recognised before the plug-in changes its configuration."""

from __future__ import annotations

import pytest

from specmargin.errors import EngineError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, while vLLM is imported


def test_this_release_has_all_of_it() -> None:
    from specmargin.live.vllm.check import check_engine, missing_parts  # noqa: PLC0415 (imports vLLM)

    assert missing_parts() == []
    check_engine("this release")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415
    from vllm.v1.outputs import DraftTokenIds  # noqa: PLC0415

    from specmargin.live.vllm import check  # noqa: PLC0415

    monkeypatch.delattr(Scheduler, "_free_request")
    monkeypatch.setitem(check.METHODS, "update_from_output", ("scheduled", "output"))
    monkeypatch.setitem(check.FIELDS, DraftTokenIds, ("req_ids", "weights"))
    with pytest.raises(EngineError) as caught:
        check.check_engine("9.9")
    message = str(caught.value)
    assert message.startswith("vLLM 9.9 lacks Scheduler._free_request(request), Scheduler.update_from_output")
    assert "DraftTokenIds.weights" in message
