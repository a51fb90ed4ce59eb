"""One SGLang engine in this process: its own scheduler and event loop, with a script that runs between two iterations.

The script is a generator; each `yield` is one iteration of SGLang's loop. Acceptance is simulated: every draft token is
accepted with the same rate if those before it were, whatever the depth. Drafts and committed tokens are random, so that
the routing of dummy weights is as diverse as that of text.
"""

from __future__ import annotations

import os
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

Script = Iterator[None]
MOST_ITERATIONS = 400  # until all sequences decode
PROMPT_TOKENS = 96


class Acceptance:
    """Rate of each draft token, given that those before it were accepted."""

    rate = 0.7

    def install(self, vocabulary: int) -> None:
        """Through SGLang's own switch for simulated acceptance, of which only the drawing is replaced."""
        import torch
        from sglang.srt.speculative import eagle_worker_v2, spec_utils
        from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

        def drawn(accept_index: Any, predict: Any, num_correct_drafts: Any, spec_steps: int, **_: Any) -> Any:
            first = accept_index[:, :1]
            places = torch.arange(spec_steps + 1, device=first.device, dtype=first.dtype)
            kept = torch.rand(first.shape[0], spec_steps, device=first.device) < self.rate
            num_correct_drafts.copy_(kept.int().cumprod(dim=1).sum(dim=1))
            predict.random_(100, vocabulary - 100)
            return torch.where(places <= num_correct_drafts[:, None], first + places, -1)

        def with_random_drafts(
            batch: Any, draft_input: Any, parents: Any, scores: Any, drafts: Any, *rest: Any, **named: Any
        ) -> Any:
            random = torch.randint_like(drafts, 100, vocabulary - 100)
            return build_eagle_verify_input(batch, draft_input, parents, scores, random, *rest, **named)

        spec_utils.SIMULATE_ACC_LEN = 1.0  # on
        spec_utils.generate_simulated_accept_index = drawn
        eagle_worker_v2.build_eagle_verify_input = with_random_drafts


def give_head_its_vocabulary() -> None:
    """Published EAGLE-3 heads map their own, smaller vocabulary to the target's; dummy weights have no map."""
    import torch
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

    made = LlamaForCausalLMEagle3.__init__

    def with_map(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.hot_token_id = torch.arange(self.config.draft_vocab_size, device="cpu")

    LlamaForCausalLMEagle3.__init__ = with_map


class Engine:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.acceptance = job, Acceptance()
        self.vocabulary = int(job["vocabulary"])
        begun = time.perf_counter()
        self.scheduler = _started(job["engine"], self._prepare)
        self.start_seconds = time.perf_counter() - begun
        self.worker = self.scheduler.draft_worker
        self.inbox: list[Any] = []
        self.added = self.iterations = self.rounds = 0
        self.asked = Counter[int]()
        channels = self.scheduler.ipc_channels
        channels.send_to_tokenizer.socket = channels.send_to_detokenizer.socket = None  # nobody reads the tokens

    def _prepare(self) -> None:
        if self.job["speculative"]:
            give_head_its_vocabulary()
            self.acceptance.install(self.vocabulary)

    @property
    def controller(self) -> Any:
        return getattr(self.worker, "adaptive_controller", None)

    # --- SGLang's loop ---

    def run(self, script: Script) -> None:
        """Until the script ends. What it raises ends the loop too."""
        scheduler, launch = self.scheduler, self.scheduler.run_batch

        def tick() -> list[Any]:
            self.iterations += 1
            if next(script, self) is self:
                scheduler.gracefully_exit = True
            requests, self.inbox = self.inbox, []
            scheduler.process_input_requests(requests)
            return requests

        def counted(batch: Any, *arguments: Any, **named: Any) -> Any:
            decodes = batch.forward_mode.is_decode()
            result = launch(batch, *arguments, **named)
            if decodes:
                self.rounds += 1
                self.asked[self.depth] += 1
            return result

        scheduler.ingest_requests, scheduler.run_batch = tick, counted
        scheduler.run_event_loop()

    @property
    def depth(self) -> int:
        return int(self.worker.speculative_num_steps) if self.worker is not None else 0

    # --- sequences ---

    def requests(self) -> list[Any]:
        return list(self.scheduler.running_batch.reqs)

    def fill(self, batch: int, most_tokens: int) -> Script:
        """`batch` sequences past their prompts."""
        import numpy as np

        generator = np.random.default_rng([7, batch])
        for _ in range(batch):
            prompt = generator.integers(100, self.vocabulary - 100, PROMPT_TOKENS)
            self.inbox.append(self._request(prompt.tolist(), most_tokens))
        for _ in range(MOST_ITERATIONS):
            yield
            if len(self.requests()) == batch and min(len(r.output_ids) for r in self.requests()) > 1:
                return
        raise TimeoutError(f"of {batch} sequences only {len(self.requests())} decode; the KV cache may be too small")

    def _request(self, prompt: list[int], most_tokens: int) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.added += 1
        endless = SamplingParams(max_new_tokens=most_tokens, temperature=0.0, ignore_eos=True)
        endless.normalize(None)
        return TokenizedGenerateReqInput(
            rid=f"r{self.added}",
            input_text=None,
            input_ids=array("q", prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=endless,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )

    def clear(self) -> Script:
        from sglang.srt.managers.io_struct import AbortReq

        self.inbox.append(AbortReq(abort_all=True))
        for _ in range(MOST_ITERATIONS):
            yield
            if not self.requests() and self.scheduler.last_batch is None:
                return
        raise TimeoutError("sequences were not aborted")

    def context(self) -> float:
        return statistics.fmean(len(r.origin_input_ids) + len(r.output_ids) for r in self.requests())

    def tokens(self) -> int:
        return sum(len(request.output_ids) for request in self.requests())

    # --- what it is ---

    def description(self) -> dict[str, Any]:
        import sglang
        import torch

        return {
            "name": self.job["name"],
            "sglang": sglang.__version__,
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
            "overlap": bool(self.scheduler.enable_overlap),
            "engine": {key: value for key, value in self.job["engine"].items() if "path" not in key},
            "start_seconds": round(self.start_seconds, 1),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def _started(arguments: dict[str, Any], prepare: Callable[[], None]) -> Any:
    """As SGLang's launcher and its scheduler process do, without the other processes."""
    from sglang.srt.entrypoints import engine as launcher
    from sglang.srt.managers import scheduler as module
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs

    os.environ.setdefault("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "0")
    server_args = ServerArgs(**arguments)
    launcher.configure_logger(server_args)
    server_args.resolve_once()
    launcher._set_envs_and_config(server_args)
    load_plugins()
    server_args.check_server_args()
    prepare()
    rank = module.spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    module.publish(server_args, role="scheduler", ranks=module.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=0))
    return module.Scheduler(server_args, PortArgs.init_new(server_args))
