"""What a verdict must look like: the answer, then at most three lines of one fact each, whose shapes are fixed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from specmargin.decisions.advice import Advice

WIDTH, MOST_LINES, MOST_TEXTS = 80, 4, 5  # a long name of a drafter may wrap one line
_NUMBER, _COUNT = r"\d+\.\d\d", r"[\d,]+"
_LOAD = rf"(?:batch {_COUNT}|[\d.]+ requests/s|concurrency {_COUNT})"
_FACTOR, _DRAFTER, _LIKELY = rf"{_NUMBER}× as fast", r"[\w.:-]+", rf"likely {_NUMBER}–{_NUMBER}×"
_SPEED = rf"{_FACTOR} at {_LOAD} with {_DRAFTER}, {_LIKELY}"
_SPAN = rf"{_COUNT}(?:–{_COUNT}|\+)?"
_SPANS = rf"(?:batch {_SPAN}(?: and (?:batch )?{_SPAN})?|some batches from {_COUNT} to {_COUNT})"
#: The whole first line, by advice.
ANSWERS = {
    Advice.SPECULATE: rf"(?:Yes(?:, up to batch {_COUNT}| at {_SPANS}| at some batches)?|Mostly yes): {_SPEED}",
    Advice.UP_TO_BATCH: rf"(?:Yes(?:, up to batch {_COUNT}| at {_SPANS}| at some batches)|Mostly yes): {_SPEED}"
    rf"|Only if {_COUNT} sequences? at a time (?:is|are) enough: {_COUNT} fit without drafts",
    Advice.UNCERTAIN: rf"Uncertain: (?:best draft )?{_SPEED}",
    Advice.DO_NOT: rf"No: (?:(?:best draft )?{_SPEED}|{_FACTOR} at batch {_COUNT}, where the flags draft nothing"
    rf"|no single draft depth pays at every batch size from {_COUNT} to {_COUNT}"
    r"|no depth pays at any batch considered"
    r"|--depth 0 leaves nothing to draft"
    rf"|the queue grows at {_LOAD} with drafts, and not without"
    rf"|at {_LOAD} drafts miss the target that is met without them)"
    rf"|No, and overloaded: the queue grows at {_LOAD} with drafts and without",
    Advice.UNSUPPORTED: r"Not yet: [^.\n]*",
    Advice.NONE_FITS: rf"No: batch {_COUNT} does not fit in memory(?: with drafts)?",
    Advice.SLOWER_FIRST_TOKEN: rf"Only if a time to first token of [\d.,]+ m?s is acceptable at {_LOAD}",
    Advice.MISSES_TARGET: rf"Not enough: at {_LOAD} the target is missed with drafts and without",
    Advice.OVERLOADED: rf"Overloaded: the queue grows at {_LOAD} with drafts and without",
}
#: The whole of every other line.
FACTS = (
    rf"Throughput: {_COUNT} tok/s with drafts, {_COUNT} tok/s without",
    r"Target of [\d.]+ ms per token: [\d.]+ ms with drafts, [\d.]+ ms without",
    rf"Estimate: (?:best draft )?{_SPEED}",
    r"Time to first token: [\d.,]+ m?s with drafts, [\d.,]+ m?s without",
    rf"(?:Pays|The gain is clear only|Slower|The gain is not certain) at {_SPANS}",
    rf"Speculation loses above batch {_COUNT}: cap the server at {_COUNT} sequences?",
    rf"Fits in memory: {_COUNT} sequences?(?: with drafts, {_COUNT} without)?",
    r"Prefill takes \d+% of the time without drafts, and drafts do not shorten it",
    rf"Draft(?: to try)?: (?:nothing"
    rf"|nothing; (?:try )?\d+ tokens? if you only run batch {_COUNT}: {_NUMBER}×, {_LIKELY}"
    rf"|\d+ tokens? at (?:every batch|batch {_SPAN}(?:, \d+ at {_SPAN}){{0,2}})"
    rf"(?:, \d+ from {_COUNT} on|, none above)?"
    rf"|\d+ to \d+ tokens, set per batch by the flags(?:, none above batch {_COUNT})?)",
    rf"Pays above an acceptance of 0\.\d{{2,6}} per token at batch {_COUNT}; "
    r"(?:assumed|benchmarked|given): [01]\.\d{2,6}",
    rf"At batch {_COUNT} even an acceptance of 1\.00 per token is too low",
    r"Largest uncertainty: [\w' ]+; narrow it with (?:specmargin [a-z ]+|the benchmark that --explain prints)",
)
RANGE = "|".join(f"(?:{ANSWERS[each]})" for each in (Advice.SPECULATE, Advice.UP_TO_BATCH, Advice.UNCERTAIN))


def form_faults(text: str, advice: Advice) -> Iterator[str]:
    answer, *facts = text.splitlines()
    if len(facts) >= MOST_LINES:
        yield f"{len(facts) + 1} lines: {text}"
    if sum(len(textwrap.wrap(line, WIDTH)) for line in (answer, *facts)) > MOST_TEXTS:
        yield f"too long for {MOST_TEXTS} lines of {WIDTH} columns: {text}"
    if not re.fullmatch(rf"(?:{ANSWERS[advice]})\.", answer):
        yield f"the first line does not answer {advice!r}: {text}"
    for fact in facts:
        if not re.fullmatch(rf"(?:{'|'.join(FACTS)})\.", fact):
            yield f"a line of no known shape: {fact!r}"
    labels = [fact.partition(":")[0] for fact in facts]
    if len(set(labels)) < len(labels):
        yield f"a fact twice: {text}"
