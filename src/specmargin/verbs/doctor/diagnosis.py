"""From a server that was seen, and what is expected of it, to causes in order and what is not excluded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specmargin.verbs.doctor.drafts import acceptance, is_low, usual_first
from specmargin.verbs.doctor.finding import Case, Finding, NotExcluded
from specmargin.verbs.doctor.load import depth, memory, not_drafting, prompts
from specmargin.verbs.doctor.steps import excess, experts, fitted, graphs, host, slow_gpu, slow_rounds


class Status(StrEnum):
    CAUSE = "cause"  # at least one is named
    UNEXPLAINED = "unexplained"  # something is outside its range, and the metrics do not show why
    HEALTHY = "healthy"  # all that is shown is as expected
    NOT_SPECULATING = "not-speculating"  # nothing is configured
    IDLE = "idle"
    UNKNOWN = "unknown"  # too little is shown to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    status: Status
    findings: tuple[Finding, ...] = ()  # the largest loss first
    differences: tuple[str, ...] = ()  # outside their range without a cause that shows
    not_excluded: tuple[NotExcluded, ...] = ()


_CAUSES = (
    not_drafting,
    acceptance,
    depth,
    graphs,
    memory,
    prompts,
    host,
    slow_gpu,
    experts,
)
#: What follows from another cause is not a second one.
_HIDDEN_BY = {
    "depth-too-deep": {"drafter-broken", "drafter-later-positions", "random-tokens", "sampling", "context"},
    "depth-too-shallow": {"drafter-broken", "drafter-later-positions", "random-tokens", "sampling", "context"},
    "experts": {"slow-gpu"},
}


def diagnose(case: Case) -> Diagnosis:
    if case.seen.idle:
        return Diagnosis(status=Status.IDLE)
    found = [finding for finding in (cause(case) for cause in _CAUSES) if finding is not None]
    names = {finding.id for finding in found}
    kept = [finding for finding in found if not names & _HIDDEN_BY.get(finding.id, set())]
    # What has no price (no model, no GPU) was named on evidence alone, and comes first; a cause by
    # an engine's default comes after those that were read.
    findings = tuple(
        sorted(kept, key=lambda finding: (not finding.sure, -(2.0 if finding.gain is None else finding.gain)))
    )
    differences = _differences(case, names)
    return Diagnosis(
        status=_status(case, findings, differences),
        findings=findings,
        differences=differences,
        not_excluded=tuple(_not_excluded(case, names)),
    )


def _status(case: Case, findings: tuple[Finding, ...], differences: tuple[str, ...]) -> Status:
    if findings:
        return Status.CAUSE
    if differences:
        return Status.UNEXPLAINED
    if case.of.speculates is False:
        return Status.NOT_SPECULATING
    compared = case.slow is not None or (case.expected is not None and case.seen.first is not None)
    return Status.HEALTHY if compared else Status.UNKNOWN


def _slow_is_explained(case: Case, names: set[str]) -> bool:
    """By a cause of its own, or by launches outside graphs on a host as slow as some are."""
    if names & {"host", "slow-gpu", "experts"}:
        return True
    launched = fitted(case) if names & {"eager", "piecewise", "draft-graphs", "beyond-graphs"} else None
    took = case.seen.round_seconds
    return launched is not None and took is not None and took <= launched.round_seconds.high


def _differences(case: Case, names: set[str]) -> tuple[str, ...]:
    found = []
    if case.is_slow and not _slow_is_explained(case, names):
        found.append(slow_rounds(case))
    explained = names & {"drafter-broken", "random-tokens", "sampling", "context"}
    if is_low(case) and not explained:
        usual = usual_first(case)
        found.append(
            f"position 1 is accepted in {case.seen.first:.0%} of rounds; {usual.low:.0%} to {usual.high:.0%} is usual"
        )
    return tuple(found)


def _not_excluded(case: Case, names: set[str]) -> list[NotExcluded]:
    return [*_of_slow_steps(case, names), *_of_acceptance(case, names)]


def _of_slow_steps(case: Case, names: set[str]) -> list[NotExcluded]:
    """Also where no time per round is shown: then nothing about it is known."""
    if (case.slow is not None and not case.is_slow) or _slow_is_explained(case, names):
        return []
    found, moe = (excess(case) if case.is_slow else None), _is_moe(case)
    listed = []
    if found is None or not found.factor_fits:
        listed.append(
            NotExcluded(
                id="host", title="a slow or busy host", check="top on the server; run doctor while the load varies"
            )
        )
    if found is None or not found.constant_fits:
        listed.append(
            NotExcluded(
                id="slow-gpu", title="a slow GPU (clock, MIG, shared)", check="nvidia-smi -q -d CLOCK,PERFORMANCE"
            )
        )
        if moe and case.of.distinct_experts is None:
            listed.append(
                NotExcluded(id="experts", title="routing wider than the profile", check="specmargin profile routing")
            )
    unknown = case.settings.graph_mode is None and case.settings.eager is None
    if unknown and not names & {"eager", "piecewise", "beyond-graphs", "draft-graphs"}:
        listed.append(
            NotExcluded(
                id="eager",
                title="eager or piecewise graphs",
                check="cudagraph_mode and enforce_eager in the server's start-up log",
            )
        )
    return listed


def _is_moe(case: Case) -> bool:
    return case.expected is not None and case.expected.scenario.architecture.is_moe


def _of_acceptance(case: Case, names: set[str]) -> list[NotExcluded]:
    if not is_low(case) or "drafter-broken" in names:
        return []  # nothing else takes acceptance that low
    listed = []
    listed.append(
        NotExcluded(
            id="drafter-broken",
            title="a drafter that does not match the model",
            check="specmargin profile acceptance on text that it was trained for",
        )
    )
    if "sampling" not in names:
        listed.append(
            NotExcluded(
                id="sampling", title="sampling settings of the requests", check="send some requests at temperature 0"
            )
        )
    if "random-tokens" not in names:
        listed.append(
            NotExcluded(
                id="random-tokens",
                title="text that is hard to draft, or random tokens",
                check="look at the prompts of the load",
            )
        )
    if "context" not in names:
        listed.append(
            NotExcluded(
                id="context",
                title="acceptance that falls with length",
                check="doctor --log with lines of short and long sequences",
            )
        )
    return listed
