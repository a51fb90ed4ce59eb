// Schedules, [[first batch, last batch, depth], …]: the arithmetic of decisions/schedule.py, tested against `plan --json`.

export const argbest = (values, better) => values.reduce((best, value, i) => (better(value, values[best]) ? i : best), 0);
export const argmax = (values) => argbest(values, (a, b) => a > b);
export const argmin = (values) => argbest(values, (a, b) => a < b);
export const range = (count) => [...Array(count).keys()];
export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export const maxDepth = (schedule) => Math.max(...schedule.map(([, , depth]) => depth));
export const depthAt = (schedule, batch) => (schedule.find(([, last]) => batch <= last) ?? schedule[schedule.length - 1])[2];
export const stops = (schedule) => schedule.some(([, , depth]) => depth === 0);

// Batch sizes to price up to `largest`: every one to 512, then some at growing distances.
export function spread(largest) {
  const small = range(Math.min(largest, 512)).map((i) => i + 1);
  if (largest <= 512) return small;
  const count = Math.ceil(64 * Math.log(largest / 512)), power = Math.log10(largest / 513);
  const larger = range(count + 1).map((i) => (i === count ? largest : Math.round(513 * 10 ** ((i * power) / count))));
  return [...small, ...new Set(larger)];
}

// table: { batches, speedup[i][depth], allowed[i][depth], fits[depth] }
export function makeSchedule(table, minGain, ends = [], firstDepth = null) {
  const { batches } = table, rows = lastRows(batches, ends), loss = lossBySegment(table, rows, minGain);
  if (firstDepth !== null) loss[0] = loss[0].map((_, depth) => (depth === firstDepth ? 0 : Infinity));
  return scheduleOf(roomiest(loss, table.fits, minGain), rows.map((row) => batches[row]));
}

// From the depth of each segment, and its last batch.
export function scheduleOf(depths, ends) {
  const schedule = [];
  depths.forEach((depth, segment) => {
    const end = ends[segment], before = schedule[schedule.length - 1];
    if (before?.[2] === depth) before[1] = end; else schedule.push([before ? before[1] + 1 : 1, end, depth]);
  });
  return schedule;
}

// The last row of each segment: batches that share a depth in any case.
export function lastRows(batches, ends) {
  const open = ends[ends.length - 1] ?? 0, closed = new Set(ends), last = batches.length - 1;
  return range(batches.length).filter((row) => batches[row] > open || closed.has(batches[row]) || row === last);
}

// What each batch counts for: by its logarithm.
export function batchShares(batches) {
  const weights = batches.map((batch, i) => (batch - (i ? batches[i - 1] : 0)) / batch), whole = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / whole);
}

// By segment, which ends with one of `rows`, and depth: the share of goodput lost; infinite where it is too much.
function lossBySegment({ batches, speedup, allowed }, rows, minGain) {
  const shares = batchShares(batches);
  let row = 0;
  return rows.map((end) => {
    const good = speedup[row].map(() => true), loss = speedup[row].map(() => 0);
    for (; row <= end; row += 1) {
      const values = speedup[row].map((value, depth) => (allowed[row][depth] ? value : -Infinity)), best = Math.max(...values);
      values.forEach((value, depth) => {
        if (!(value / best >= 1 - minGain)) good[depth] = false;
        loss[depth] += shares[row] * Math.min(1 - value / best, 1e9);
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
  const depths = range(loss[0].length), ways = depths.map((to) => depths.map((from) => [from, from === to ? 0 : 2 * loss.length + (to > from ? 1 : 0)]));
  const [path, total] = cheapestPath(loss, ways);
  return [path, Math.floor(total)];
}

// The states of the smallest sum of losses and changes, and that sum. `ways`: by state, [the state before, the change] of each way to it.
export function cheapestPath(loss, ways) {
  const before = [];
  let total = loss[0];
  for (let segment = 1; segment < loss.length; segment += 1) {
    const reached = new Float64Array(ways.length).fill(Infinity), from = new Int32Array(ways.length);
    for (let to = 0; to < ways.length; to += 1) {
      for (const [state, change] of ways[to]) {
        if (total[state] + change < reached[to]) { reached[to] = total[state] + change; from[to] = state; }
      }
      reached[to] += loss[segment][to];
    }
    before.push(from);
    total = reached;
  }
  const path = [argmin(total)];
  for (const from of before.reverse()) path.push(from[path[path.length - 1]]);
  return [path.reverse(), Math.min(...total)];
}

export function rowOf({ batches }, batch) { // the row that stands for it
  const row = batches.findIndex((each) => each >= batch);
  return row < 0 ? batches.length - 1 : row;
}
