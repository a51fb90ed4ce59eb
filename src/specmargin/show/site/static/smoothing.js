// Schedules that zigzag, smoothed: the arithmetic of decisions/smoothing.py. Tested against `plan --json`.

import { batchShares, cheapestPath, depthAt, lastRows, maxDepth, range, rowOf, scheduleOf } from "./schedule.js";

const MEAN_COST = 0.01, TOLERANCES = [1, 1.25, 1.5, 1.75, 2], DIRECTIONS = [-1, 1, -1];

export function zigzags(schedule) {
  const steps = schedule.slice(1).map(([, , depth], i) => Math.sign(depth - schedule[i][2])), runs = steps.filter((step, i) => step !== steps[i - 1]);
  return runs.length + (runs[0] > 0 ? 1 : 0) > DIRECTIONS.length;
}

// At most one fall, one rise and one fall, with the fewest ranges; as it is, where that costs too much.
export function smoothed(schedule, table, batches, minGain, ends, firstDepth) {
  if (!zigzags(schedule)) return schedule;
  const { speedup, allowed } = table, before = table.batches.map((batch) => depthAt(schedule, batch)), segments = lastRows(table.batches, ends);
  const relative = speedup.map((values, row) => {
    const best = Math.max(...values.filter((_, depth) => allowed[row][depth]));
    return values.map((value, depth) => (allowed[row][depth] ? value / best : -Infinity));
  });
  const shares = batchShares(table.batches), lost = (row, depth) => shares[row] * Math.min(Math.max(1 - relative[row][depth], 0), 1);
  const depths = range(maxDepth(schedule) + 1), loss = bySegment(segments, depths, 0, (total, row, depth) => total + lost(row, depth));
  const budget = sum(before.map((depth, row) => lost(row, depth))) + MEAN_COST, planned = new Set(batches.map((batch) => rowOf(table, batch)));
  for (const factor of TOLERANCES) {
    const near = before.map((own, row) => Math.min(1 - minGain * (planned.has(row) ? 1 : factor), relative[row][own]));
    const good = bySegment(segments, depths, true, (all, row, depth) => all && (depth === before[row]
      || (allowed[row][depth] && relative[row][depth] >= near[row] && speedup[row][depth] >= Math.min(1, speedup[row][before[row]]))));
    if (firstDepth !== null) good[0] = depths.map((depth) => depth === firstDepth);
    const path = shaped(loss.map((row, i) => row.map((value, depth) => (good[i][depth] ? value : Infinity))));
    const found = path && scheduleOf(path, segments.map((row) => table.batches[row]));
    if (found && found.length <= schedule.length && sum(path.map((depth, i) => loss[i][depth])) < budget) return found;
  }
  return schedule;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

// By segment, which ends with one of `rows`, and depth: what `add` makes of its rows.
function bySegment(rows, depths, empty, add) {
  return rows.map((end, i) => depths.map((depth) => {
    let value = empty;
    for (let row = i ? rows[i - 1] + 1 : 0; row <= end; row += 1) value = add(value, row, depth);
    return value;
  }));
}

// The depth of each segment, or null: fewest ranges, then fewest rises, then the smallest loss. A state is a depth and a phase.
function shaped(loss) {
  const depths = loss[0].length, states = range(DIRECTIONS.length * depths), depth = (state) => state % depths, phase = (state) => Math.floor(state / depths);
  const ways = states.map((to) => states.flatMap((from) => {
    const step = depth(to) - depth(from), turn = phase(to) - phase(from);
    if (to === from) return [[from, 0]];
    return Math.sign(step) === DIRECTIONS[phase(to)] && (turn === 0 || turn === 1) ? [[from, 2 * loss.length + (step > 0 ? 1 : 0)]] : [];
  }));
  const byState = loss.map((row, segment) => states.map((state) => (segment || phase(state) === 0 ? row[depth(state)] : Infinity)));
  const [path, total] = cheapestPath(byState, ways);
  return Number.isFinite(total) ? path.map(depth) : null;
}
