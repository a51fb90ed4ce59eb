// The values of the sentences of decisions/verdict.py, which come as data.

import { listed, say } from "./phrases.js";
import { depthAt } from "./schedule.js";

const most = (rows, value) => rows.reduce((best, row) => (best === null || value(row) > value(best) ? row : best), null);

export function verdict(plan, view, phrases) {
  const { first, judged, gains, horizon, prices, low, high, unknown } = view, fitting = plan.rows.filter((row) => row.fits), deepest = prices.maxDepth;
  const pays = fitting.some((row) => row.depth > 0 && row.speedup > 1), best = most(fitting, (row) => row.speedup);
  const alone = most(fitting.filter((row) => row.better_depth), (row) => row.better_speedup), worst = most(gains, ([, gain]) => -gain);
  const spans = (ranges) => listed("span", ranges.map(([from, to]) => ({ low: from, high: to, one: from === to })), phrases, " and ", 3) || null;
  const { pays_at_batches: paying, surely_pays_at_batches: surely, loses_at_batches: losing, largest_batch: fits } = plan;
  const values = {
    ...plan, supported: true, pays, none_fits: !fitting.length, several_gpus: plan.gpus > 1 && plan.gpus, one_fits: fits === 1,
    first_speedup: first.speedup, first_batch: first.batch, best_speedup: best && best.batch !== first.batch && best.speedup, best_batch: best?.batch,
    steps: steps(plan, phrases), capped_depth: fitting.some((row) => row.depth === deepest) && !view.drafter.limited && deepest,
    alone_depth: alone?.better_depth, alone_speedup: alone?.better_speedup, alone_batch: alone?.batch,
    everywhere: paying.length === 1 && paying[0][0] === 1 && paying[0][1] === horizon, more_fit: fits > horizon, priced_up_to: horizon,
    spans: spans(paying), losing_spans: spans(losing), off_there: losing.flat().every((batch) => depthAt(plan.schedule, batch) === 0),
    worst_speedup: worst[1], worst_batch: worst[0],
    fewer_fit: fits < view.limits.much_less * plan.no_spec_largest_batch, faster_without: plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second,
    no_drafts: deepest === 0, row_off: first.depth === 0, row_batch: first.batch, first_acceptance: prices.survival[0],
    ...(pays && {
      uncertain: plan.advice === "uncertain", clear: plan.advice !== "uncertain", judged_batch: judged.batch, judged_speedup: judged.speedup,
      low, high, unknown: unknown?.phrase, narrow: unknown?.narrow,
      partly_clear: surely.length > 0 && JSON.stringify(surely) !== JSON.stringify(paying), clear_spans: spans(surely), nowhere_clear: !surely.length,
    }),
  };
  return say("verdict", phrases, values);
}

// What is drafted up to the largest batch that fits; the same depth twice is one step.
function steps(plan, phrases) {
  const ranges = plan.schedule.filter(([first]) => first <= Math.max(plan.largest_batch, 1));
  const kept = ranges.filter(([, , depth], i) => i + 1 === ranges.length || ranges[i + 1][2] !== depth);
  return listed("step", kept.map(([, last, depth]) => ({ last, depth, off: depth === 0, single: depth === 1 })), phrases, ", ", 4);
}
