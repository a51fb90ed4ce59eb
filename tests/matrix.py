"""Every bundled model × GPU × engine: does the table say what the flags mean, and the verdict what the table says?

`python -m tests.matrix` (`make test-matrix`) checks all of them, which takes about half an hour on one core. It appends
to `.cache/matrix.jsonl` and skips what that file holds for the same code, so it can be stopped and continued. The same
code: the modules that plans import, the catalog and the kernel tables; a change of the explorer restarts nothing.
At the end it writes `tests/matrix_summary.md`. `tests/contracts/test_matrix.py` checks a fixed sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import specmargin
from specmargin.answers.scenarios import scenarios_of
from specmargin.catalog.engine_support import engines_of
from specmargin.catalog.lookup import bundled_device, bundled_model, device_names, model_names
from specmargin.decisions.pricer import Pricer
from specmargin.decisions.verdict import details
from specmargin.errors import InputError, ParallelismError
from specmargin.formats import ENGINES
from specmargin.modes import Parallel
from specmargin.show import terminal
from specmargin.verbs.plan.drafter_plan import DrafterPlan, drafter_plan
from specmargin.verbs.plan.request_schema import PlanRequest
from specmargin.verbs.plan.text import plan_blocks
from specmargin.verbs.plan.values import answer_text
from tests import engine_readers
from tests.engine_readers import READERS
from tests.verdict_form import form_faults

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".cache" / "matrix.jsonl"
SUMMARY = ROOT / "tests" / "matrix_summary.md"
_MOST_LINES, _WIDTH = 30, 80
_SLACK = 1e-9
# The last has routing of its own in the catalog, read by modules that no other model needs.
_FIRST_CELLS = (("qwen3.6-35b-a3b", "h200"), ("llama-3.1-8b", "h100"), ("reference-moe", "a100"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    model: str
    gpu: str
    engine: str
    parallel: str = "tp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    state: str  # "planned", or why not
    rows: int = 0
    faults: tuple[str, ...] = ()


def cells() -> Iterator[Cell]:
    """All models, GPUs and engines; with expert parallelism where the model has experts."""
    for model, gpu, engine in itertools.product(model_names(), device_names(), ENGINES):
        if engine not in engines_of(bundled_device(gpu)):
            continue
        yield Cell(model=model, gpu=gpu, engine=engine)
        if bundled_model(model).is_moe and engine not in ("llamacpp", "mlx"):
            yield Cell(model=model, gpu=gpu, engine=engine, parallel="dp-ep")


def sample() -> list[Cell]:
    """At most 150, always the same: every model, GPU and engine, in changing company."""
    gpus, engines = device_names(), list(ENGINES)
    models = [model for model in model_names() if any(_fits(model, gpu) for gpu in gpus)]
    pairs = [(model, _next_gpu(model, gpus, i)) for i, model in enumerate(models)]
    pairs += [(model, _next_gpu(model, gpus, i + 7)) for i, model in enumerate(models) if i % 2]
    missing = set(gpus) - {gpu for _, gpu in pairs}
    pairs += [(next(model for model in models if _fits(model, gpu)), gpu) for gpu in sorted(missing)]
    chosen = [Cell(model=m, gpu=g, engine=engines[i % len(engines)]) for i, (m, g) in enumerate(pairs)]
    spread = [
        Cell(model=m, gpu=g, engine=("vllm", "sglang", "trtllm")[i % 3], parallel="dp-ep")
        for i, (m, g) in enumerate(pairs[::5])
        if bundled_model(m).is_moe
    ]
    return [*chosen, *spread][:150]


def _next_gpu(model: str, gpus: Sequence[str], start: int) -> str:
    """The first from `start` on, in a circle, that holds the model."""
    turns = (gpus[(start + i) % len(gpus)] for i in range(len(gpus)))
    return next(gpu for gpu in turns if _fits(model, gpu))


@cache
def _fits(model: str, gpu: str) -> bool:
    try:
        fewest_gpus(model, gpu, "tp")
    except InputError:
        return False
    return True


def check(cell: Cell) -> Result:
    try:
        gpus = fewest_gpus(cell.model, cell.gpu, cell.parallel)
    except ParallelismError:
        return Result(state="do not fit on 8 GPUs")
    except InputError as error:
        return Result(state=f"refused: {error}")
    request = PlanRequest(
        model=cell.model, gpu=cell.gpu, gpus=gpus, engine=cell.engine, parallel=Parallel(cell.parallel)
    )
    try:
        ((choice, scenario),) = scenarios_of(request)
        result = drafter_plan(choice, Pricer(scenario), request)
    except InputError as error:
        return Result(state=f"refused: {error}")
    return Result(state="planned", rows=len(result.plan.rows), faults=tuple(faults(result, cell.engine)))


@cache
def fewest_gpus(model: str, gpu: str, parallel: str) -> int:
    """The smallest power of two, up to 8, that holds the weights."""
    for gpus in (1, 2, 4, 8) if parallel == "tp" else (2, 4, 8):
        request = PlanRequest(model=model, gpu=gpu, gpus=gpus, parallel=Parallel(parallel), prices="datasheet")
        try:
            ((_, scenario),) = scenarios_of(request)
            Pricer(scenario).check_memory()
        except ParallelismError:
            if gpus == 8:
                raise
            continue
        return gpus
    raise AssertionError("unreachable")


# --- what must hold ---

_REFUSED = "Uncertain: best draft "  # nothing is drafted


def faults(result: DrafterPlan, engine: str) -> Iterator[str]:
    losing = () if result.plan.loss is None else result.plan.loss.spans
    batches = {*_sampled(result.plan.paying), *_sampled(losing), *(row.batch for row in result.plan.rows)}
    result.plan.pricer.grid(sorted(batches), result.plan.setting.max_depth)  # priced together, kept by the pricer
    yield from _row_faults(result, engine)
    yield from _range_faults(result, engine)
    yield from _verdict_faults(result, engine)
    yield from _output_faults(result, engine)


def parsed_depth(result: DrafterPlan, engine: str, batch: int) -> int:
    """The depth that the engine would draft, from the printed text alone."""
    return READERS[engine](result.config, batch) if result.config.text else 0


def parsed_speedup(result: DrafterPlan, engine: str, batch: int) -> float:
    if not result.config.text:
        return 1.0
    depth = parsed_depth(result, engine, batch)
    grid = result.plan.pricer.grid([batch], result.plan.setting.max_depth)
    return float(grid.goodput[0, depth] / grid.no_spec_goodput[0])


def _row_faults(result: DrafterPlan, engine: str) -> Iterator[str]:
    plan = result.plan
    for row in plan.rows:
        depth, speedup = parsed_depth(result, engine, row.batch), parsed_speedup(result, engine, row.batch)
        if row.depth != depth:
            yield f"batch {row.batch}: the table drafts {row.depth}, the flags {depth}"
        if abs(row.speedup - speedup) > _SLACK:
            yield f"batch {row.batch}: speed-up {row.speedup}, with the flags {speedup}"
        if (row.hurdle is None) == (row.hurdle_note is None) or not 0.0 <= (row.hurdle or 0.0) <= 1.0:
            yield f"batch {row.batch}: hurdle {row.hurdle} ({row.hurdle_note})"
        if row.better_speedup is not None and row.better_speedup <= row.speedup * (1.0 + plan.min_gain):
            yield f"batch {row.batch}: {row.better_speedup} is not better than {row.speedup}"
        if row.fits and row.fits != (row.batch <= plan.largest_batch):
            yield f"batch {row.batch}: fits beside {plan.largest_batch}"
    same = plan.rows_at_context(plan.scenario.context)
    if [row.fits for row in same] != [row.fits for row in plan.rows]:
        yield "the table by context disagrees on what fits"


def _range_faults(result: DrafterPlan, engine: str) -> Iterator[str]:
    plan = result.plan
    losing = () if plan.loss is None else plan.loss.spans
    inside = [(batch, side) for ranges, side in ((plan.paying, 1), (losing, -1)) for batch in _sampled(ranges)]
    for batch, side in inside:
        speedup = parsed_speedup(result, engine, batch)
        if (speedup - 1.0) * side <= 0.0:
            yield f"batch {batch}: speed-up {speedup} where it is called {'paying' if side > 0 else 'losing'}"
    for row in plan.rows:
        if row.batch <= plan.priced_up_to and _within(row.batch, plan.paying) != (row.speedup > 1.0):
            yield f"batch {row.batch}: {row.speedup} and the paying ranges {plan.paying}"


def _sampled(ranges: tuple[tuple[int, int], ...]) -> Iterator[int]:
    for first, last in ranges:
        yield from sorted({first, (first + last) // 2, round((first * last) ** 0.5), last})


def _within(batch: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= batch <= last for first, last in ranges)


def _verdict_faults(result: DrafterPlan, engine: str) -> Iterator[str]:
    plan, judgement = result.plan, result.judgement
    text = answer_text(result)
    fitting = [row for row in plan.rows if row.fits]
    drafts = text.startswith(("Yes", "Mostly yes: ", "Only if ", "Uncertain: ")) and not text.startswith(_REFUSED)
    if drafts != bool(result.config.text and plan.pays and fitting):
        yield f"the verdict and the flags {result.config.text!r} disagree: {text}"
    unsure = judgement.range.spans_one and bool(fitting) and (plan.pays or 0.0 < judgement.row.speedup <= 1.0)
    if text.startswith("Uncertain") != (unsure and judgement.row.depth > 0):
        yield f"the verdict and its range {judgement.range.low} to {judgement.range.high} disagree: {text}"
    if fitting and plan.setting.max_depth > 0:
        yield from form_faults(text, result.advice)
        yield from _draft_faults(result, engine, text)
    for row, sure in zip(plan.rows, result.ranges, strict=True):
        if row.depth > 0 and row.batch <= plan.priced_up_to:
            placed = _within(row.batch, judgement.surely_paying), _within(row.batch, judgement.uncertain)
            if placed != (sure.low > 1.0, sure.spans_one):
                yield f"batch {row.batch}: {sure.low} to {sure.high}, yet surely pays and uncertain are {placed}"
    row = judgement.row
    if (
        text.startswith(("Yes:", "Yes,", "Mostly yes: ", "Only if "))
        and f"{row.speedup:.2f}× as fast at batch {row.batch:,} " not in text
    ):
        yield f"the verdict does not give the gain of the row by which it is judged: {text}"
    said = " ".join(details(plan, judgement))
    if ("It loses" in said) != (plan.loss is not None):
        yield f"the details are silent about a loss: {said}"
    if any(row.speedup < 1.0 for row in fitting if row.batch <= plan.priced_up_to) and "It loses" not in said:
        yield f"a row loses, and the details do not say so: {said}"


def _draft_faults(result: DrafterPlan, engine: str, text: str) -> Iterator[str]:
    """What the verdict says to draft is what the flags say, at both ends of each range of batches."""
    (line,) = re.findall(r"^Draft(?: to try)?: (.*)\.$", text, re.MULTILINE) or [""]
    ranges = re.findall(r"(\d+)(?: tokens?)? (?:at|from) (?:batch )?([\d,]+)(?:–([\d,]+))?", line)
    for depth, *ends in ranges:
        for batch in (int(end.replace(",", "")) for end in ends if end):
            if parsed_depth(result, engine, batch) != int(depth):
                yield f"batch {batch}: the verdict drafts {depth}, the flags {parsed_depth(result, engine, batch)}"
    last = result.plan.largest_batch
    every, end = (
        re.match(r"(\d+) tokens? at every batch", line),
        re.search(r"(\d+|none) (?:from [\d,]+ on|above$)", line),
    )
    ends = [
        (0 if said[1] == "none" else int(said[1]), batch)
        for said in (every, end)
        if said
        for batch in ((1, last) if said is every else (last,))
    ]
    if any(parsed_depth(result, engine, batch) != depth for depth, batch in ends):
        yield f"the verdict drafts {line}, the flags another depth: {result.config.text}"


def _output_faults(result: DrafterPlan, engine: str) -> Iterator[str]:
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        terminal.show(plan_blocks([result], None, explain=False))
    lines = captured.getvalue().splitlines()
    if len(lines) > _MOST_LINES:
        yield f"{len(lines)} lines of output"
    pasted = [*result.config.text.splitlines(), *(result.config.file_text or "").splitlines()]
    for line in lines:
        if len(line.rstrip()) > _WIDTH and not any(text in line for text in pasted):
            yield f"{len(line.rstrip())} columns: {line}"


# --- all of them ---


def main() -> int:
    modules = plan_modules()
    code = digest(modules)
    done = _read(code)
    todo = [cell for cell in cells() if cell not in done]
    RESULTS.parent.mkdir(exist_ok=True)
    try:
        _check_all(todo, done, code, modules)
    finally:
        SUMMARY.write_text(_summary(done), encoding="utf-8")
        print(SUMMARY.read_text(encoding="utf-8"))
    return 1 if any(result.faults for result in done.values()) else 0


def _check_all(todo: list[Cell], done: dict[Cell, Result], code: str, modules: frozenset[str]) -> None:
    began, known = time.monotonic(), len(done)
    with RESULTS.open("a", encoding="utf-8") as file:
        for index, cell in enumerate(todo, start=1):
            result = check(cell)
            if missed := _imported() - modules:
                raise AssertionError(f"{cell} needs modules that the key of the results leaves out: {sorted(missed)}")
            done[cell] = result
            file.write(json.dumps({"code": code, "cell": asdict(cell), "result": asdict(result)}) + "\n")
            file.flush()
            if index % 20 == 0 or index == len(todo):
                left = (time.monotonic() - began) / index * (len(todo) - index)
                print(f"{index}/{len(todo)} ({known} known before), {left / 60:.0f} min left", flush=True)


def plan_modules() -> frozenset[str]:
    """Modules that plans import, found by planning: some are imported only when they are needed."""
    for engine, (model, gpu) in itertools.product(ENGINES, _FIRST_CELLS):
        check(Cell(model=model, gpu=gpu, engine=engine))
    return _imported()


def _imported() -> frozenset[str]:
    return frozenset(name for name in sys.modules if name.partition(".")[0] == "specmargin")


def digest(modules: frozenset[str]) -> str:
    """Of what a plan depends on: results of other code do not count."""
    package = Path(specmargin.__file__).parent
    code = [Path(str(sys.modules[name].__file__)) for name in sorted(modules)]
    data = [path for ending in ("*.toml", "*.json", "*.npz") for path in sorted((package / "catalog").rglob(ending))]
    checks = [Path(__file__), Path(engine_readers.__file__)]
    tables = version("aiconfigurator-core") if find_spec("aiconfigurator_core") else ""
    content = b"".join(path.read_bytes() for path in [*code, *data, *checks])
    return hashlib.sha256(content + tables.encode()).hexdigest()[:16]


def _read(code: str) -> dict[Cell, Result]:
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return {
        Cell(**line["cell"]): Result(**{**line["result"], "faults": tuple(line["result"]["faults"])})
        for line in lines
        if line["code"] == code
    }


def _summary(done: dict[Cell, Result]) -> str:
    states = Counter(result.state.partition(":")[0] for result in done.values())
    faulty = [(cell, fault) for cell, result in done.items() for fault in result.faults]
    planned = [cell for cell, result in done.items() if result.state == "planned"]
    lines = [
        "# Table, verdict and flags over all bundled models, GPUs and engines",
        "",
        "`make test-matrix` writes this file; `tests/matrix.py` says what is checked. "
        f"{len(done):,} of {sum(1 for _ in cells()):,} combinations were tried.",
        "",
        "| engine | layout | plans | rows | faults |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for engine, parallel in sorted({(cell.engine, cell.parallel) for cell in planned}):
        group = [done[cell] for cell in planned if (cell.engine, cell.parallel) == (engine, parallel)]
        rows, count = sum(result.rows for result in group), sum(len(result.faults) for result in group)
        lines.append(f"| {engine} | {parallel} | {len(group):,} | {rows:,} | {count:,} |")
    lines += ["", *(f"- {count:,} {state}" for state, count in states.most_common()), ""]
    lines += [f"- {cell.model}, {cell.gpu}, {cell.engine}, {cell.parallel}: {fault}" for cell, fault in faulty[:50]]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
