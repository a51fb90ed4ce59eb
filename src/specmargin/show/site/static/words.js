// The values of the lines of decisions/verdict.py, whose templates come as data.

import { lines, listed, say } from "./phrases.js";
import { breakEven } from "./survival.js";

const GAINS = ["speculate", "speculate-up-to-batch", "uncertain"];

export function verdict(plan, view, phrases) {
  const { judged, drafted, pays, gains, prices, low, high, unknown, inputs, limits, limit, losesCapacity, surelyLosing } = view, { pays_at_batches: paying, loses_at_batches: losing } = plan;
  const gain = GAINS.includes(plan.advice) && pays, uncertain = plan.advice === "uncertain", tooLarge = plan.advice === "none-fits";
  const known = judged.depth > 0 && !tooLarge, refused = known && !drafted, alone = refused && !pays && judged.speedup > 1, last = gain ? limit : null, short = gain && losesCapacity && last === plan.largest_batch;
  const worst = Math.min(...gains.map(([, speedup]) => speedup)), at = (ranges) => batches(ranges, phrases, limits.long_spans);
  return lines("verdict", phrases, {
    ...plan, too_large: tooLarge, no_drafts: prices.maxDepth === 0, gains: gain, fails: !gain, uncertain, estimate: alone, alone, refused, off: pays && !drafted && judged.speedup,
    factor: known && judged.speedup, low, high, batch: judged.batch, limit: last, several: plan.largest_batch !== 1, elsewhere: pays && !gain, paying_batches: at(paying),
    sorted: gain ? sorted(plan, losing.length > 0 && worst < 1 - limits.min_gain ? surelyLosing : [], last, phrases, limits.long_spans) : null, short, crowded: tooLarge || short, fewer_fit: plan.largest_batch < plan.no_spec_largest_batch,
    nothing: prices.maxDepth > 0 && !pays && !tooLarge && !drafted, drafts: gain, known: Boolean(unknown?.narrow) && !tooLarge, unknown: unknown?.phrase, narrow: unknown?.narrow,
    every_step: say("step", phrases, { first: true, only: true, one: true, low: judged.batch, depth: judged.depth, plural: judged.depth !== 1 }), // of the batch asked about
    ...acceptance(judged, prices, inputs, uncertain),
  }, limits.most_lines).join("\n");
}

function acceptance({ depth, break_even_acceptance: even }, { committed }, inputs, uncertain) {
  const deep = Math.max(depth, 1), used = breakEven(committed[deep], deep), origin = inputs.find(({ name }) => name === "acceptance")?.origin;
  const digits = [2, 3, 4, 5].find((count) => even === null || used.toFixed(count) !== even.toFixed(count)) ?? 6;
  return { used: used.toFixed(digits), even: even === null ? null : even.toFixed(digits), hopeless: even === null && !uncertain, assumed: origin === "borrowed", benchmarked: origin === "benchmark" };
}

// Batches of clear gain, of a range that spans 1, and of a loss; null where the answer says as much.
function sorted({ surely_pays_at_batches: gain, uncertain_at_batches: unsure }, slower, last, phrases, long) {
  const kinds = Object.entries({ gain, uncertain: unsure, slower }).filter(([, ranges]) => ranges.length);
  if (kinds.length < 2 || (!unsure.length && last !== null)) return null;
  return listed("kind", kinds.map(([name, ranges]) => ({ name, ...ends(ranges, phrases, long, ", ") })), phrases, "; ");
}

const batches = (ranges, phrases, long) => (ranges.length ? say("batches", phrases, ends(ranges, phrases, long, " and ")) : null);

function ends(ranges, phrases, long, between) {
  const spans = listed("span", ranges.map(([low, high]) => ({ low, high, one: low === high })), phrases, between);
  return { scattered: ranges.length > long, low: ranges[0][0], high: ranges[ranges.length - 1][1], spans };
}
