// The values of the sentences of decisions/verdict.py, which come as data.

import { listed, say } from "./phrases.js";
import { depthAt } from "./schedule.js";
import { breakEven } from "./survival.js";

const GAINS = ["speculate", "speculate-up-to-batch", "uncertain"];

export function verdict(plan, view, phrases) {
  const { judged, drafted, pays, gains, prices, low, high, unknown, limits, limit, losesCapacity } = view, { pays_at_batches: paying, surely_pays_at_batches: surely, loses_at_batches: losing } = plan;
  const [worstBatch, worst] = gains.reduce((least, entry) => (entry[1] < least[1] ? entry : least)), gain = GAINS.includes(plan.advice) && pays, deep = Math.max(judged.depth, 1);
  const used = breakEven(prices.committed[deep], deep), even = judged.break_even_acceptance;
  const known = judged.depth > 0, less = losesCapacity && paying.length > 0, beyond = limit !== null && ["speculate-up-to-batch", "uncertain"].includes(plan.advice);
  const at = (ranges) => batches(ranges, phrases, limits.long_spans);
  const values = {
    ...plan, too_large: plan.advice === "none-fits", off: pays && !drafted && judged.speedup, loses: drafted && !gain, elsewhere: pays && !gain, paying_batches: at(paying), no_drafts: prices.maxDepth === 0, gains: gain, uncertain: plan.advice === "uncertain",
    factor: known && judged.speedup, low, high, batch: judged.batch, depth: judged.depth, alone: !drafted && !pays && known && judged.speedup > 1, limit: gain ? limit : null, less_capacity: gain && less, beyond, earlier: beyond && limit < plan.largest_batch, one_fits: plan.largest_batch === 1,
    peak_loss: Math.round(100 * (1 - plan.peak_tokens_per_second / plan.no_spec_peak_tokens_per_second)),
    refused: !drafted && known && judged.speedup <= 1, only_batch: plan.rows.length === 1 && judged.batch, several: plan.rows.length > 1, even, used, just_short: even !== null && Math.round(100 * used) === Math.round(100 * even),
    ...steps(plan, phrases, limits.long_steps), known: Boolean(unknown?.narrow) && plan.advice !== "none-fits", unknown: unknown?.phrase, narrow: unknown?.narrow,
    losing_batches: at(losing), off_there: losing.length === 1 && losing[0].every((batch) => depthAt(plan.schedule, batch) === 0), off_at_worst: depthAt(plan.schedule, worstBatch) === 0, matters: worst < 1 - limits.min_gain,
    first_batch: plan.rows[0].batch, worst_speedup: worst, worst_batch: worstBatch,
    partly_clear: surely.length > 0 && JSON.stringify(surely) !== JSON.stringify(paying), clear_batches: at(surely), room: gain && !less,
  };
  return say("verdict", phrases, values);
}

function batches(ranges, phrases, long) {
  if (!ranges.length) return null;
  const spans = listed("span", ranges.map(([low, high]) => ({ low, high, one: low === high })), phrases, " and ");
  return say("batches", phrases, { scattered: ranges.length > long, low: ranges[0][0], high: ranges[ranges.length - 1][1], spans });
}

// What is drafted up to the largest batch that fits; the same depth twice is one step.
function steps(plan, phrases, long) {
  const merged = [];
  for (const [, last, depth] of plan.schedule.filter(([first]) => first <= Math.max(plan.largest_batch, 1))) {
    if (merged.length && merged[merged.length - 1].depth === depth) merged[merged.length - 1].last = last;
    else merged.push({ last, depth });
  }
  merged.forEach((step) => { step.alone = step.last === 1; });
  return {
    ...rise(merged), cut: merged.length > long, first_step: say("step", phrases, { first: true, ...merged[0] }), every_step: listed("step", merged, phrases, ""),
  };
}

function rise(steps) {
  const depths = steps.map(({ depth }) => depth), deepest = depths.lastIndexOf(Math.max(...depths));
  if (deepest === 0) return { rises: false, rises_once: false };
  return {
    rises: true, rises_once: deepest === 1, least: Math.min(...depths.slice(0, deepest + 1)), most: depths[deepest],
    deepest_from: steps[deepest - 1].last + 1, fewer_from: deepest + 1 < steps.length ? steps[deepest].last + 1 : null,
  };
}
