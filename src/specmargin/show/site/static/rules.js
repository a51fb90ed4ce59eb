// The best schedule that a rule of formats/rules.py allows. Tested against `plan --json`.

import { argbest, argmax, depthAt, makeSchedule, maxDepth, mean, range, rowOf, stops } from "./schedule.js";
import { smoothed } from "./smoothing.js";

const rowsAt = (table, batches) => batches.map((batch) => table.speedup[rowOf(table, batch)]);

const alwaysDrafting = (table) => ({ ...table, allowed: table.allowed.map(([off, ...rest]) => [off && !rest.includes(true), ...rest]) });

// The best schedule under the rule, and the limits that cost something.
export function choose(rule, table, batches, minGain) {
  if (rule.one_depth !== null) {
    const schedule = fixedSchedule(table, batches);
    return { schedule, limits: [rule.one_depth + lost(table, batches, maxDepth(schedule))] };
  }
  const limits = [];
  let best = makeSchedule(table, minGain, rule.ends);
  if (rule.never_off !== null) {
    if (stops(best)) limits.push(rule.never_off);
    table = alwaysDrafting(table);
    best = makeSchedule(table, minGain, rule.ends);
  }
  if (rule.deepest_first === null) return { schedule: smoothed(best, table, batches, minGain, rule.ends, null), limits };
  const schedule = deepestFirst(table, batches, best, minGain), firstDepth = schedule[0][2];
  if (firstDepth !== maxDepth(best)) limits.push(rule.deepest_first);
  return { schedule: smoothed(schedule, table, batches, minGain, rule.ends, firstDepth), limits };
}

function fixedSchedule(table, batches) {
  const rows = rowsAt(table, batches).map((row) => [1, ...row.slice(1)]), depths = range(rows[0].length);
  const neverLoses = depths.map((depth) => rows.every((row) => row[depth] >= 1)), some = neverLoses.slice(1).includes(true);
  const merit = depths.map((depth) => (!some || neverLoses[depth] ? mean(rows.map((row) => Math.log(row[depth]))) : -Infinity));
  return [[1, table.batches[table.batches.length - 1], argmax(merit)]];
}

// Where one depth loses most against the best depth of each batch.
function lost(table, batches, depth) {
  const rows = rowsAt(table, batches).map((row) => [1, ...row.slice(1)]);
  const percent = rows.map((row) => Math.floor(100 * (Math.max(...row) / row[depth] - 1) + 0.5)), worst = argmax(percent);
  return percent[worst] > 0 ? `; the best depth of each batch would be up to ${percent[worst]}% faster (batch ${batches[worst]})` : "";
}

function deepestFirst(table, batches, best, minGain) {
  if (best[0][2] === maxDepth(best)) return best;
  const limited = (depth) => ({
    batches: table.batches, fits: table.fits.slice(0, depth + 1),
    speedup: table.speedup.map((row) => row.slice(0, depth + 1)), allowed: table.allowed.map((row) => row.slice(0, depth + 1)),
  });
  const depths = range(maxDepth(best) + 1).filter((depth) => depth || table.allowed.some((row) => row[0]));
  const candidates = depths.map((depth) => makeSchedule(limited(depth), minGain, [], depth)), rows = rowsAt(table, batches);
  const merits = candidates.map((schedule) => {
    const chosen = rows.map((row, i) => row[depthAt(schedule, batches[i])]);
    return [chosen.every((value, i) => value >= rows[i][0]), mean(chosen.map(Math.log))];
  });
  return candidates[argbest(merits, (a, b) => a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]))];
}

export const pays = (table, batches, schedule) => rowsAt(table, batches)
  .some((row, i) => depthAt(schedule, batches[i]) > 0 && row[depthAt(schedule, batches[i])] > 1);

// The schedule as the engine reads it, up to any batch.
export function extended(schedule, { beyond }, maxBatch) {
  const [first, last, depth] = schedule[schedule.length - 1];
  if (beyond === "keeps") return [...schedule.slice(0, -1), [first, maxBatch, depth]];
  return beyond === "stops" && depth > 0 && last < maxBatch ? [...schedule, [last + 1, maxBatch, 0]] : schedule;
}
