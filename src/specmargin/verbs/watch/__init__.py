"""Monitor a running server: load, steps and acceptance; with the plug-in its decisions, goodput and faults.

Reads only the server's /metrics. The first reading covers the time since the server's start, each later one the time
since the previous reading. --json prints one reading without waiting (more with --count). Works with stock vLLM, SGLang
(--enable-metrics), TensorRT-LLM (return_perf_metrics) and llama.cpp (--metrics).

Examples:

  specmargin watch http://localhost:8000
  specmargin watch http://localhost:8000 --once --json
  specmargin watch --dashboard specmargin-grafana.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import Block, Verbatim
from specmargin.answers.outputs_schema import Outputs
from specmargin.answers.verb import verb
from specmargin.errors import EngineError
from specmargin.files import write_text
from specmargin.verbs.watch.request_schema import WatchOutputs, WatchRequest

if TYPE_CHECKING:
    from specmargin.verbs.watch.engine import EngineAnswer
    from specmargin.verbs.watch.plug_in import WatchAnswer


@verb(WatchRequest, outputs=WatchOutputs)
def watch(
    request: WatchRequest, *, outputs: WatchOutputs | None = None
) -> Iterator[WatchAnswer | EngineAnswer] | DashboardAnswer:
    outputs = outputs or WatchOutputs()
    if outputs.dashboard is not None:
        if request.url:
            raise EngineError("--dashboard writes a file and reads no server: leave out the address")
        return DashboardAnswer(request=request, path=outputs.dashboard)
    if not request.url:
        raise EngineError("give the address of the server, such as http://localhost:8000 (or --dashboard FILE)")
    from specmargin.verbs.watch.readings import answers

    return answers(request, as_json=outputs.as_json)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DashboardAnswer(Answer[WatchRequest]):
    path: Path

    schema: ClassVar[str] = "specmargin.watch-dashboard/1"

    @property
    def verdict(self) -> str:
        how = "import it in Grafana (Dashboards, New, Import) and choose your Prometheus data source"
        return f"Wrote {self.path}: {how}."

    def values(self) -> dict[str, Any]:
        return {"output": str(self.path)}

    def blocks(self) -> Iterator[Block]:
        yield Verbatim(self.verdict)

    def written(self, outputs: Outputs) -> Self:
        text = resources.files("specmargin.live").joinpath("grafana.json").read_text(encoding="utf-8")
        write_text(self.path, text, force=outputs.force)
        return self
