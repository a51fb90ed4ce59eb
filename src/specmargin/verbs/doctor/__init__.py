"""Why is my server slow? Name the cause, its evidence, what it costs and what fixes it.

Reads a running server (vLLM, SGLang, TensorRT-LLM, llama.cpp; no plug-in needed) twice, some seconds apart, or lines of
its log, and compares them with what the plan expects of this model on this GPU. --model and --gpu name what the server
does not say of itself. What metrics cannot show is listed as not excluded, and never named as the cause.

The exit code is 0 whatever is found, and non-zero only if nothing could be read.

Examples:

  specmargin doctor http://localhost:8000 --gpu h200

  specmargin doctor --log vllm.log --model Qwen/Qwen3-30B-A3B --gpu h100

  specmargin doctor --model qwen3-30b-a3b --gpu h200 < pasted-lines
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specmargin.answers.verb import Progress, silent, verb
from specmargin.verbs.doctor.request_schema import DoctorOutputs, DoctorRequest

if TYPE_CHECKING:
    from specmargin.verbs.doctor.answer import DoctorAnswer


@verb(DoctorRequest, outputs=DoctorOutputs)
def doctor(request: DoctorRequest, *, progress: Progress = silent) -> DoctorAnswer | Iterator[DoctorAnswer]:
    from specmargin.verbs.doctor.readings import answers

    each = answers(request, progress)
    return each if request.watch else next(each)
