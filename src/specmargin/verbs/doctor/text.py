"""A diagnosis in the terminal, in 80 columns: verdict, figures, findings, and what is not excluded."""

from __future__ import annotations

from collections.abc import Iterator

from specmargin.answers.blocks import GAP, Block, Line, Style, Table, bold, dim, left, right
from specmargin.verbs.doctor.diagnosis import Diagnosis, Status
from specmargin.verbs.doctor.expected import Expected
from specmargin.verbs.doctor.figures import figures
from specmargin.verbs.doctor.finding import Case, Finding
from specmargin.verbs.doctor.load import ANY_BATCH


def verdict_of(case: Case, diagnosis: Diagnosis, missing: tuple[str, ...]) -> str:
    match diagnosis.status:
        case Status.CAUSE:
            first = diagnosis.findings[0]
            return f"{first.title}{_loss(case, first)}. Fix: {first.fix}."
        case Status.UNEXPLAINED:
            return f"Not as expected, and the metrics do not show why: {'; '.join(diagnosis.differences)}."
        case Status.NOT_SPECULATING:
            return f"No speculation is configured. {_would_gain(case)}"
        case Status.HEALTHY:
            shown = "Nothing is wrong" if case.slow is not None else "Acceptance is as usual"
            return f"{shown}: {_as_expected(case)}."
        case Status.IDLE:
            return "The server is idle: send it requests, and ask again."
        case _:
            return f"No cause shows, and too little is known to compare: {'; '.join(missing) or 'no load is shown'}."


def _loss(case: Case, of: Finding) -> str:
    if of.gain is None or of.loss is None:
        return ""
    now = case.of.generated_tokens_per_second
    if now:
        return f": {now:,.0f} tokens/s instead of {now * (1.0 + of.gain):,.0f} (−{of.loss:.0%})"
    return f": −{of.loss:.0%} tokens/s"


def _as_expected(case: Case) -> str:
    seen, expected = case.seen, case.expected
    if expected is None:
        return "no figure is outside its usual range"
    parts = []
    tokens, due = case.of.generated_tokens_per_second, expected.tokens_per_second
    if case.slow is None:
        return _acceptance_alone(case, expected)
    if tokens:
        parts.append(f"{tokens:,.0f} tokens/s, {due.value:,.0f} expected ({due.low:,.0f} to {due.high:,.0f})")
    if seen.accept_length is not None and expected.depth:
        usual = expected.usual_length()
        parts.append(f"accept length {seen.accept_length:.2f}, {usual.low:.2f} to {usual.high:.2f} is usual")
    return "; ".join(parts) or "all figures are within their ranges"


def _acceptance_alone(case: Case, expected: Expected) -> str:
    """Where no time per step is shown: what is known of the depth."""
    usual, length = expected.usual_length(), case.seen.accept_length or 1.0
    parts = [f"accept length {length:.2f}, {usual.low:.2f} to {usual.high:.2f} is usual"]
    if not expected.batch_shown:
        parts.append(f"the best depth is {_by_batch(expected)}")
    return f"{'; '.join(parts)}. Time per step is not shown: add lines with throughput and running requests"


def _by_batch(expected: Expected) -> str:
    best = {round(batch): expected.at(batch).best_depth()[0] for batch in ANY_BATCH}
    if len(set(best.values())) == 1:
        return f"{best.popitem()[1]} at every batch"
    return ", ".join(f"{depth} at batch {batch}" for batch, depth in best.items())


def _would_gain(case: Case) -> str:
    expected = case.expected
    if expected is None:
        return "Give --model and --gpu to see what it would gain."
    depth, speed = expected.best_depth(expected.usual)
    if not depth:
        return f"At this load none pays with {expected.scenario.drafter.name}."
    factor, name = 1.0 + (case.gain(speed, expected.no_spec_goodput) or 0.0), expected.scenario.drafter.name
    return f"Depth {depth} with {name} would give {factor:.2f} times the tokens/s: {case.flags(depth)}"


def blocks_of(case: Case, diagnosis: Diagnosis, missing: tuple[str, ...]) -> Iterator[Block]:
    style = {Status.CAUSE: Style.WARNING, Status.HEALTHY: Style.GOOD}.get(diagnosis.status, Style.BOLD)
    yield Line(verdict_of(case, diagnosis, missing), style)
    yield GAP
    rows = [figure.cells() for figure in figures(case)]
    if rows:
        yield Table(title=_title(case), columns=[*left(""), *right("seen", "expected", "80% range")], rows=rows)
        yield GAP
    for number, finding in enumerate(diagnosis.findings, 1):
        yield from _finding(case, number, finding)
    yield from _rest(case, diagnosis, missing)


def _title(case: Case) -> str:
    of, expected = case.of, case.expected
    over = "" if of.seconds is None else f", {of.seconds:.0f} s"
    where = f"{case.title} at {of.source}{over}"
    if expected is None:
        return where
    gpus, scenario = expected.scenario.layout.gpus, expected.scenario
    many = f"{gpus} × " if gpus > 1 else ""
    return f"{where}: {scenario.architecture.name} on {many}{scenario.device.name}"


def _finding(case: Case, number: int, of: Finding) -> Iterator[Block]:
    loss = _loss(case, of) or ": what it costs is not known"
    yield bold(f"{number}. {of.title}{loss}")
    for sentence in of.evidence:
        yield Line(f"   {sentence}")
    yield Line(f"   fix: {of.fix}")
    yield GAP


def _rest(case: Case, diagnosis: Diagnosis, missing: tuple[str, ...]) -> Iterator[Block]:
    for sentence in diagnosis.differences:
        yield Line(f"outside its range, cause not shown: {sentence}", Style.WARNING)
    if diagnosis.not_excluded:
        yield dim("not excluded, and how to check:")
        for each in diagnosis.not_excluded:
            yield dim(f"  {each.title}: {each.check}")
    for sentence in missing:
        yield dim(f"not known: {sentence}")
    if case.of.not_shown:
        yield dim(f"not shown here: {', '.join(case.of.not_shown)}")
