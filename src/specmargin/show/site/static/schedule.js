// Schedules, [[first batch, last batch, depth], …]: the arithmetic of decisions/schedule.py, and the choice among those that a
// rule of formats/rules.py allows. Tested against `plan --json`.

const argbest = (values, better) => values.reduce((best, value, i) => (better(value, values[best]) ? i : best), 0);
export const argmax = (values) => argbest(values, (a, b) => a > b);
const argmin = (values) => argbest(values, (a, b) => a < b);
export const range = (count) => [...Array(count).keys()];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export const maxDepth = (schedule) => Math.max(...schedule.map(([, , depth]) => depth));
export const depthAt = (schedule, batch) => (schedule.find(([, last]) => batch <= last) ?? schedule[schedule.length - 1])[2];
const stops = (schedule) => schedule.some(([, , depth]) => depth === 0);

// Batch sizes to price up to `largest`: every one to 512, then some at growing distances.
export function spread(largest) {
  const small = range(Math.min(largest, 512)).map((i) => i + 1);
  if (largest <= 512) return small;
  const count = Math.ceil(64 * Math.log(largest / 512)), power = Math.log10(largest / 513);
  const larger = range(count + 1).map((i) => (i === count ? largest : Math.round(513 * 10 ** ((i * power) / count))));
  return [...small, ...new Set(larger)];
}

// table: { batches, speedup[i][depth], allowed[i][depth], fits[depth] }
function makeSchedule(table, minGain, ends = [], firstDepth = null) {
  const { batches } = table, open = ends[ends.length - 1] ?? 0, closed = new Set(ends), last = batches.length - 1;
  const rows = range(batches.length).filter((row) => batches[row] > open || closed.has(batches[row]) || row === last);
  const loss = lossBySegment(table, rows, minGain);
  if (firstDepth !== null) loss[0] = loss[0].map((_, depth) => (depth === firstDepth ? 0 : Infinity));
  const schedule = [];
  roomiest(loss, table.fits, minGain).forEach((depth, segment) => {
    const end = batches[rows[segment]], before = schedule[schedule.length - 1];
    if (before?.[2] === depth) before[1] = end; else schedule.push([before ? before[1] + 1 : 1, end, depth]);
  });
  return schedule;
}

// By segment, which ends with one of `rows`, and depth: the share of goodput lost; infinite where it is too much.
function lossBySegment({ batches, speedup, allowed }, rows, minGain) {
  const weights = batches.map((batch, i) => (batch - (i ? batches[i - 1] : 0)) / batch), whole = weights.reduce((sum, weight) => sum + weight, 0);
  let row = 0;
  return rows.map((end) => {
    const good = speedup[row].map(() => true), loss = speedup[row].map(() => 0);
    for (; row <= end; row += 1) {
      const values = speedup[row].map((value, depth) => (allowed[row][depth] ? value : -Infinity)), best = Math.max(...values);
      values.forEach((value, depth) => {
        if (!(value / best >= 1 - minGain)) good[depth] = false;
        loss[depth] += (weights[row] / whole) * Math.min(1 - value / best, 1e9);
      });
    }
    const least = Math.min(...loss), some = good.includes(true);
    return loss.map((value, depth) => (good[depth] || (!some && value === least) ? value : Infinity));
  });
}

function roomiest(loss, fits, minGain) {
  let [depths, changes] = cheapest(loss);
  for (let deepest = Math.max(...depths) - 1; deepest > 0; deepest -= 1) {
    if (fits[deepest] * (1 - minGain) <= fits[Math.max(...depths)]) continue;
    const [shallower, theirs] = cheapest(loss.map((row) => row.slice(0, deepest + 1)));
    if (theirs > changes) break;
    depths = shallower;
  }
  return depths;
}

function cheapest(loss) {
  const before = [], change = (from, to) => (from === to ? 0 : 2 * loss.length + (to > from ? 1 : 0));
  let total = loss[0];
  for (const lost of loss.slice(1)) {
    const ways = lost.map((_, to) => total.map((value, from) => value + change(from, to))), from = ways.map(argmin);
    before.push(from);
    total = lost.map((value, to) => value + ways[to][from[to]]);
  }
  const path = [argmin(total)], changes = Math.floor(Math.min(...total));
  for (const from of before.reverse()) path.unshift(from[path[0]]);
  return [path, changes];
}

// --- the choice ---

const rowsAt = ({ batches: known, speedup }, batches) => batches.map((batch) => {
  const row = known.findIndex((each) => each >= batch);
  return speedup[row < 0 ? known.length - 1 : row];
});

const alwaysDrafting = (table) => ({ ...table, allowed: table.allowed.map(([off, ...rest]) => [off && !rest.includes(true), ...rest]) });

// The best schedule under the rule, and the limits that cost something.
export function choose(rule, table, batches, minGain) {
  if (rule.one_depth !== null) return { schedule: fixedSchedule(table, batches), limits: [rule.one_depth] };
  const limits = [];
  let best = makeSchedule(table, minGain, rule.ends);
  if (rule.never_off !== null) {
    if (stops(best)) limits.push(rule.never_off);
    table = alwaysDrafting(table);
    best = makeSchedule(table, minGain, rule.ends);
  }
  const schedule = rule.deepest_first === null ? best : deepestFirst(table, batches, best, minGain);
  if (rule.deepest_first !== null && schedule[0][2] !== maxDepth(best)) limits.push(rule.deepest_first);
  return { schedule, limits };
}

function fixedSchedule(table, batches) {
  const rows = rowsAt(table, batches).map((row) => [1, ...row.slice(1)]), depths = range(rows[0].length);
  const neverLoses = depths.map((depth) => rows.every((row) => row[depth] >= 1)), some = neverLoses.slice(1).includes(true);
  const merit = depths.map((depth) => (!some || neverLoses[depth] ? mean(rows.map((row) => Math.log(row[depth]))) : -Infinity));
  return [[1, table.batches[table.batches.length - 1], argmax(merit)]];
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
