"""Profile a bank of rounds: survival with its uncertainty, calibrated confidence, and policies compared.

Examples:

  specmargin profile acceptance bank/
  specmargin profile acceptance bank/ --ladder --at study-passes --at real --plot ladder.png
  specmargin profile acceptance --metrics http://localhost:8000 -o mine.acceptance.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from specmargin.answers.answer import Answer
from specmargin.answers.blocks import GAP, Block, Table, Verbatim, bold, dim, left, right
from specmargin.answers.outputs_schema import FILE, FileOutputs, Outputs, PlotOutputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import Progress, silent, verb
from specmargin.errors import AcceptanceError, ScenarioError
from specmargin.files import write_text

if TYPE_CHECKING:
    from specmargin.acceptance.bank import Rounds
    from specmargin.acceptance.calibration import Quality
    from specmargin.acceptance.estimate import SurvivalEstimate
    from specmargin.acceptance.schema import AcceptanceFile
    from specmargin.acceptance.temperatures import Temperatures
    from specmargin.answers.ladder_prices import LadderPrices
    from specmargin.show.figures.figure import Chart

_ENDING = ".acceptance.json"
_SAMPLED = 512  # rounds that a profile keeps
_CALIBRATORS = ("raw", "calibrated")


# --- request ---


class ProfileAcceptanceRequest(Request):
    files: Annotated[
        tuple[str, ...],
        Field(
            description="Banks: a folder with acceptance.parquet and speculator.parquet, a .csv "
            "(commits,category,a0..), or vLLM's detailed speculation metrics as .jsonl."
        ),
        Shown(argument=True),
    ] = ()
    metrics: Annotated[
        str | None,
        Field(
            description="Address of a running vLLM, SGLang, TensorRT-LLM or llama.cpp server instead of banks: its "
            "counters since its start."
        ),
        Shown(metavar="URL"),
    ] = None
    ladder: Annotated[bool, Field(description="Also replay the bank under every policy (the policy ladder).")] = False
    at: Annotated[
        tuple[str, ...],
        Field(
            description="Prices of the ladder, may be repeated: study-block, study-passes, real (Qwen3.6-35B-A3B on an "
            "H200), post (a published roofline)."
        ),
        Shown(metavar="PRICES", default="study-block, study-passes"),
    ] = ()
    splits: Annotated[
        int,
        Field(ge=1, le=100, description="Number of splits by request for held-out calibration."),
        Shown(metavar="N"),
    ] = 5
    source: Annotated[
        str | None,
        Field(description="Source recorded in the profile: model, drafter, conditions."),
        Shown(metavar="TEXT", default="the file names"),
    ] = None


class ProfileAcceptanceOutputs(FileOutputs, PlotOutputs):
    output: Annotated[
        Path | None,
        Field(description=f"Where to write NAME{_ENDING}, for --acceptance."),
        FILE.named("--output", "-o"),
    ] = None
    sts: Annotated[
        Path | None,
        Field(description="Write the confidence calibration of SGLang's DSpark, a temperature per position."),
        FILE,
    ] = None
    plot: Annotated[Path | None, Field(description="Draw the ladder: FILE.png, .svg, .html or .json."), FILE] = None


# --- verb ---


@verb(ProfileAcceptanceRequest, outputs=ProfileAcceptanceOutputs)
def profile_acceptance(
    request: ProfileAcceptanceRequest, *, outputs: ProfileAcceptanceOutputs | None = None, progress: Progress = silent
) -> ProfileAcceptanceAnswer | MetricsAnswer:
    outputs = outputs or ProfileAcceptanceOutputs()
    if request.metrics is not None:
        if request.files or request.ladder or outputs.sts is not None or outputs.plot is not None:
            raise ScenarioError("--metrics reads a server: leave out banks, --sts, --ladder and --plot")
        return _metrics(request, request.metrics, outputs)
    if not request.files:
        raise ScenarioError("give a bank of rounds, or the address of a server (--metrics URL)")
    from specmargin.acceptance.bank import read_bank
    from specmargin.acceptance.temperatures import fit_temperatures

    prices = _ladder_prices(request.at)
    if outputs.plot is not None and not request.ladder:
        raise ScenarioError("--plot draws the ladder: add --ladder")
    rounds = read_bank([Path(file) for file in request.files])
    rounds = replace(rounds, source=request.source) if request.source else rounds
    return ProfileAcceptanceAnswer(
        request=request,
        rounds=rounds,
        temperatures=None if outputs.sts is None else fit_temperatures(rounds),
        temperatures_path=outputs.sts,
        name=outputs.stem(_ENDING) or "profile",
        study=_study(rounds, prices if request.ladder else [], request.splits, progress),
    )


def _ladder_prices(names: Sequence[str]) -> list[LadderPrices]:
    from specmargin.answers.ladder_prices import LadderPrices

    prices_by_name = {str(prices): prices for prices in LadderPrices}
    unknown = [name for name in names if name not in prices_by_name]
    if unknown:
        raise ScenarioError(f"--at {unknown[0]}: known prices are {', '.join(prices_by_name)}")
    return [prices_by_name[name] for name in names] or [LadderPrices.STUDY_BLOCK, LadderPrices.STUDY_PASSES]


def _study(rounds: Rounds, ladder_prices: Sequence[LadderPrices], splits: int, progress: Progress) -> dict[str, Any]:
    """Survival, calibration held out by request, and the ladder of policies, in the shape of the JSON."""
    from specmargin.acceptance.calibration import Raw, held_out_quality, survival_of
    from specmargin.acceptance.estimate import accepted_histogram, joint_table, survival_estimate

    confident = rounds.with_confidence()
    if ladder_prices and confident is None:
        raise AcceptanceError(f"{rounds.source}: has no confidences, which the ladder needs")
    estimates = {name: survival_estimate(rounds.of_category(name)) for name in rounds.categories}
    estimates["all"] = survival_estimate(rounds)
    study: dict[str, Any] = {
        "source": rounds.source,
        "speculator": rounds.speculator,
        "categories": {name: _estimate_json(estimate) for name, estimate in estimates.items()},
        "histogram": accepted_histogram(rounds).tolist(),
        "calibration": [],
        "ladder": [],
    }
    if confident is not None:
        study["calibrated_rounds"] = confident.count
        study["joint"] = joint_table(confident, survival_of(confident, Raw())).tolist()
        with progress("calibrating", 1):
            by_depth = held_out_quality(confident, splits=splits)
            study["calibration"] = [_line_json(depth, qualities) for depth, qualities in by_depth.items()]
        study["ladder"] = _ladder(confident, ladder_prices, progress)
    return study


def _ladder(rounds: Rounds, ladder_prices: Sequence[LadderPrices], progress: Progress) -> list[dict[str, Any]]:
    from specmargin.answers.ladder_prices import price_table
    from specmargin.policies.study.ladder import CONCURRENCIES, Contest, ladder

    contest = Contest.of(rounds, seed=0) if ladder_prices else None
    rows: list[dict[str, Any]] = []
    for prices in ladder_prices:
        assert contest is not None
        with progress(f"ladder, {prices}", len(CONCURRENCIES)) as advance:
            table, profiled = price_table(prices)
            played = ladder(contest, table, profiled=profiled, advance=lambda: advance(1))
            rows += [asdict(row) | {"prices": str(prices)} for row in played]
    return rows


def _estimate_json(estimate: SurvivalEstimate) -> dict[str, Any]:
    return {
        "rounds": estimate.rounds,
        "survival": estimate.survival.tolist(),
        "survival_stderr": estimate.standard_error.tolist(),
    }


def _line_json(depth: int, qualities: Mapping[str, Quality]) -> dict[str, Any]:
    values: dict[str, Any] = {"depth": depth}
    for name, quality in qualities.items():
        values |= {
            f"ece_{name}": quality.calibration_error,
            f"log_loss_{name}": quality.log_loss,
            f"brier_{name}": quality.brier,
        }
    return values


# --- answer ---


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProfileAcceptanceAnswer(Answer[ProfileAcceptanceRequest]):
    rounds: Rounds
    study: dict[str, Any]
    temperatures: Temperatures | None
    temperatures_path: Path | None
    name: str  # of the profile

    schema: ClassVar[str] = "specmargin.profile-acceptance/1"

    @property
    def verdict(self) -> str:
        whole = self.study["categories"]["all"]
        return (
            f"{whole['rounds']:,} rounds of {self.study['speculator'] or self.study['source']}: "
            f"{sum(whole['survival']):.2f} draft tokens accepted on average, the first with probability "
            f"{whole['survival'][0]:.3f}."
        )

    def values(self) -> dict[str, Any]:
        return self.study

    def profile(self) -> AcceptanceFile:
        """Curves by category, the calibrator, and survivals of sampled rounds for the look-ahead."""
        import numpy as np

        from specmargin.acceptance.calibration import Logistic, survival_of, tokens_of
        from specmargin.acceptance.schema import AcceptanceFile, CalibratorFile, CategoryFile

        calibrator, sample, rounds = None, [], self.rounds
        confident = rounds.with_confidence()
        if confident is not None:
            model = Logistic.fit(tokens_of(confident), depths=confident.depth)
            calibrator = CalibratorFile(depths=model.depths, weights=[float(f"{w:.6g}") for w in model.weights])
            spread = np.linspace(0, confident.count - 1, min(confident.count, _SAMPLED)).astype(np.int64)
            sample = np.round(survival_of(confident, model)[spread], 4).tolist()
        return AcceptanceFile(
            schema="specmargin.acceptance/1",
            name=self.name,
            speculator=rounds.speculator,
            source=rounds.source,
            categories={key: CategoryFile(**value) for key, value in self.study["categories"].items()},
            calibrator=calibrator,
            sample=sample,
        )

    def file_text(self) -> str:
        from specmargin.acceptance.schema import as_text

        return as_text(self.profile())

    def written(self, outputs: Outputs) -> Self:
        if self.temperatures is not None and self.temperatures_path is not None:
            write_text(self.temperatures_path, _temperatures_text(self.temperatures), force=outputs.force)
        return Answer.written(self, outputs)  # `super()` does not work in a class with slots

    def blocks(self) -> Iterator[Block]:
        yield bold(self.verdict)
        yield GAP
        yield self._survival()
        yield GAP
        if self.study["calibration"]:
            left_out = self.study["categories"]["all"]["rounds"] - self.study["calibrated_rounds"]
            if left_out:
                yield dim(f"(excluded: {left_out:,} rounds of requests with missing confidences)")
            yield self._calibration()
            yield GAP
        for prices in dict.fromkeys(row["prices"] for row in self.study["ladder"]):
            yield _ladder_table(prices, [row for row in self.study["ladder"] if row["prices"] == prices])
            yield GAP
        if self.temperatures is not None and self.temperatures_path is not None:
            yield Verbatim(_temperatures_words(self.temperatures, self.temperatures_path))

    def _survival(self) -> Table:
        depth = len(self.study["categories"]["all"]["survival"])
        rows = []
        for name, category in self.study["categories"].items():
            first = f"{category['survival'][0]:.3f} ± {category['survival_stderr'][0]:.3f}"
            deeper = [f"{value:.3f}" for value in category["survival"][1:]]
            rows.append([name, f"{category['rounds']:,}", first, *deeper])
        return Table(
            title="survival (product-limit estimate; S1 ± standard error over requests)",
            columns=[*left("category"), *right("rounds", *(f"S{d}" for d in range(1, depth + 1)))],
            rows=rows,
        )

    def _calibration(self) -> Table:
        return Table(
            title="expected calibration error (log loss), requests held out",
            columns=right("depth", *_CALIBRATORS),
            rows=[
                [str(line["depth"]), *(f"{line[f'ece_{m}']:.4f} ({line[f'log_loss_{m}']:.4f})" for m in _CALIBRATORS)]
                for line in self.study["calibration"]
            ],
        )

    def chart(self) -> Chart:
        """The ladder of policies."""
        from specmargin.answers.ladder_prices import PRICE_TITLES, LadderPrices
        from specmargin.show.figures.ladder import ladder_figure

        rows = [row | {"prices": PRICE_TITLES[LadderPrices(row["prices"])]} for row in self.study["ladder"]]
        return ladder_figure(rows, source=f"Specmargin; {self.rounds.source}").chart()


def _ladder_table(prices: str, rows: Sequence[dict[str, Any]]) -> Table:
    from specmargin.answers.ladder_prices import PRICE_TITLES, LadderPrices
    from specmargin.policies.study.ladder import OURS

    policies = list(dict.fromkeys(row["policy"] for row in rows))
    return Table(
        title=f"goodput over the best fixed depth, by concurrency: {PRICE_TITLES[LadderPrices(prices)]}",
        columns=[*left("policy"), *right(*dict.fromkeys(str(row["concurrency"]) for row in rows))],
        rows=[[policy, *(f"{row['gain']:+.1%}" for row in rows if row["policy"] == policy)] for policy in policies],
        bold=frozenset(index for index, policy in enumerate(policies) if policy == OURS),
    )


def _temperatures_text(fitted: Temperatures) -> str:
    from specmargin.formats.dspark import calibration_text

    return calibration_text(
        fitted.by_position,
        source=fitted.source,
        rounds=fitted.rounds,
        error_before=fitted.error_before,
        error_after=fitted.error_after,
    )


def _temperatures_words(fitted: Temperatures, path: Path) -> str:
    from specmargin.formats.dspark import calibration_flag

    size, before, after = fitted.by_position.size, float(fitted.error_before.mean()), float(fitted.error_after.mean())
    return (
        f"Wrote {path}: {size} temperatures, for blocks of {size} alone; calibration error {before:.3f} before, "
        f"{after:.3f} after.\nFor SGLang: {calibration_flag(path)}"
    )


# --- of a running server ---


def _metrics(request: ProfileAcceptanceRequest, address: str, outputs: ProfileAcceptanceOutputs) -> MetricsAnswer:
    from specmargin.live.engine_metrics import acceptance_of, read_engine
    from specmargin.live.server import Server

    profile = acceptance_of(read_engine(Server.from_address(address)), outputs.stem(_ENDING) or "metrics")
    return MetricsAnswer(request=request, profile=profile, output=outputs.output)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MetricsAnswer(Answer[ProfileAcceptanceRequest]):
    """What a server itself has counted."""

    profile: AcceptanceFile
    output: Path | None

    schema: ClassVar[str] = "specmargin.profile-metrics/1"

    @property
    def verdict(self) -> str:
        accepted = sum(self.profile.categories["all"].survival)
        return f"{self.profile.source}: {accepted:.2f} draft tokens accepted on average"

    def values(self) -> dict[str, Any]:
        return {name: value for name, value in self.profile.model_dump(by_alias=True).items() if name != "schema"}

    def file_text(self) -> str:
        from specmargin.acceptance.schema import as_text

        return as_text(self.profile)

    def blocks(self) -> Iterator[Block]:
        curve = ", ".join(f"{share:.3f}" for share in self.profile.categories["all"].survival)
        yield Verbatim(self.verdict)
        yield Verbatim(f"survival{' (assumed shape)' if self.profile.assumed else ''}: {curve}")
        kept = f"Wrote {self.output}." if self.output is not None else f"Keep it with -o NAME{_ENDING}."
        yield Verbatim(kept)
