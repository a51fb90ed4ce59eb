// The values of the lines of decisions/verdict.py, whose templates come as data.

import { lines, listed, say } from "./phrases.js";
import { breakEven } from "./survival.js";

const GAINS = ["speculate", "speculate-up-to-batch", "uncertain"];

export function verdict(plan, view, phrases) {
  const { judged, drafted, pays, gains, prices, low, high, unknown, inputs, limits, limit, losesCapacity, surelyLosing } = view, { pays_at_batches: paying, loses_at_batches: losing } = plan;
  const gain = GAINS.includes(plan.advice) && pays, uncertain = plan.advice === "uncertain", tooLarge = plan.advice === "none-fits";
  const known = judged.depth > 0 && !tooLarge, refused = known && !drafted, alone = refused && !pays && judged.speedup > 1, last = gain ? limit : null, short = gain && losesCapacity && last === plan.largest_batch, fitting = plan.rows.filter((row) => row.fits);
  const worst = Math.min(...gains.map(([, speedup]) => speedup)), at = (ranges, end) => batches(ranges, phrases, limits.long_spans, end), end = gains[gains.length - 1]?.[0];
  const exceptions = gain ? others(plan, losing.length > 0 && worst < 1 - limits.min_gain ? surelyLosing : [], last ?? end, (ranges) => at(ranges, short ? undefined : end), limits.mostly, short ? Infinity : end) : {}, crowds = short && !uncertain && !exceptions.surely; // memory is the answer, not a fact beside it
  return lines("verdict", phrases, {
    ...plan, too_large: tooLarge, no_drafts: prices.maxDepth === 0, gains: gain, fails: !gain, uncertain, alone, refused, off: pays && !drafted && judged.speedup,
    factor: known && judged.speedup, low, high, batch: judged.batch, limit: last, several: plan.largest_batch !== 1, one_fits: plan.largest_batch === 1, several_plain: plan.no_spec_largest_batch !== 1, first_batch: plan.rows[0].batch, last_batch: (fitting[fitting.length - 1] ?? judged).batch, depth: judged.depth, plural: judged.depth !== 1, unsure: low <= 1 && high >= 1, elsewhere: pays && !gain, paying_batches: at(paying),
    ...exceptions, crowds, estimate: crowds, crowded: tooLarge || (short && !crowds), fewer_fit: plan.largest_batch < plan.no_spec_largest_batch,
    nothing: prices.maxDepth > 0 && !pays && !tooLarge && !drafted, drafts: gain, known: Boolean(unknown?.narrow) && !tooLarge, unknown: unknown?.phrase, narrow: unknown?.narrow,
    every_step: say("step", phrases, { first: true, only: true, one: true, low: judged.batch, depth: judged.depth, plural: judged.depth !== 1 }), // of the batch asked about
    ...acceptance(judged, prices, inputs, uncertain), ...(alone || (uncertain && judged.speedup > 1 && unknown && unknown.name !== "acceptance") ? { even: null } : {}), // it would read as a yes
  }, limits.most_lines).join("\n");
}

function acceptance({ depth, break_even_acceptance: even }, { committed }, inputs, uncertain) {
  const deep = Math.max(depth, 1), used = breakEven(committed[deep], deep), origin = inputs.find(({ name }) => name === "acceptance")?.origin;
  const digits = [2, 3, 4, 5].find((count) => even === null || used.toFixed(count) !== even.toFixed(count)) ?? 6;
  return { used: used.toFixed(digits), even: even === null ? null : even.toFixed(digits), hopeless: even === null && !uncertain, assumed: origin === "borrowed", benchmarked: origin === "benchmark" };
}

// Where the gain is clear, if it is uncertain at the batch of the answer; else where it is not, up to the last that pays.
function others({ advice, surely_pays_at_batches: clear, uncertain_at_batches: unsure }, slower, last, at, share, end) {
  if (advice === "uncertain") return { clear_spans: at(clear) };
  const kept = (ranges) => ranges.filter(([low]) => low <= last).map(([low, high]) => [low, Math.min(high, last)]);
  const mostly = kept(clear).reduce((sum, [low, high]) => sum + high - low + 1, 0) >= share * last && ![...kept(slower), ...kept(unsure)].some(([, high]) => high >= end), some = kept(slower).length + kept(unsure).length > 0;
  return { surely: kept(unsure).length && clear.length === 1 ? at(clear) : null, mostly: mostly && some, partly: !mostly && some, slower_spans: at(kept(slower)), unsure_spans: at(kept(unsure)) };
}

// `end`: the largest batch that counts; what reaches it goes on as far as sequences fit.
function batches(ranges, phrases, long, end) {
  if (!ranges.length) return null;
  const spans = listed("span", ranges.map(([low, high], n) => ({ low, high, one: low === high, later: n > 0, open: end !== undefined && high >= end && end > low })), phrases, " and ");
  return say("batches", phrases, { scattered: ranges.length > long, low: ranges[0][0], high: ranges[ranges.length - 1][1], spans });
}
