// Schedules: the port of decisions/schedule.py and of how each format chooses one. Tested against `plan --json`.

const MAX_BATCH = 65536;

const argbest = (values, better) => values.reduce((best, value, i) => (better(value, values[best]) ? i : best), 0);
export const argmax = (values) => argbest(values, (a, b) => a > b);
const argmin = (values) => argbest(values, (a, b) => a < b);
const range = (count) => [...Array(count).keys()];

export const fixed = (depth, last) => [{ first: 1, last, depth }];
export const maxDepth = (schedule) => Math.max(...schedule.map((entry) => entry.depth));
const stops = (schedule) => schedule.some((entry) => entry.depth === 0);
export const depthAt = (schedule, batch) => (schedule.find((entry) => batch <= entry.last) ?? schedule[schedule.length - 1]).depth;

// Batch sizes to price up to `largest`: every one to 512, then some at growing distances.
export function spread(largest) {
  const small = range(Math.min(largest, 512)).map((i) => i + 1);
  if (largest <= 512) return small;
  const count = Math.ceil(64 * Math.log(largest / 512)), power = Math.log10(largest / 513);
  const larger = range(count + 1).map((i) => (i === count ? largest : Math.round(513 * 10 ** ((i * power) / count))));
  return [...small, ...new Set(larger)];
}

// table: { batches, speedup[i][depth], allowed[i][depth], fits[depth] }
export function makeSchedule(table, minGain, { boundaries = null, firstDepth = null } = {}) {
  const last = lastRows(table, boundaries);
  const loss = lossBySegment(table, last, minGain);
  if (firstDepth !== null) loss[0] = loss[0].map((_, depth) => (depth === firstDepth ? 0 : Infinity));
  const depths = roomiest(loss, table.fits, minGain), schedule = [];
  depths.forEach((depth, segment) => {
    const end = table.batches[last[segment]], before = schedule[schedule.length - 1];
    if (before && before.depth === depth) before.last = end;
    else schedule.push({ first: before ? before.last + 1 : 1, last: end, depth });
  });
  return schedule;
}

function lastRows(table, boundaries) {
  const rows = range(table.batches.length);
  if (!boundaries) return rows;
  const ends = new Set(boundaries);
  return rows.filter((row) => ends.has(table.batches[row]) || row === rows.length - 1);
}

function lossBySegment(table, last, minGain) {
  const weights = table.batches.map((batch, i) => (batch - (i ? table.batches[i - 1] : 0)) / batch);
  const whole = weights.reduce((sum, weight) => sum + weight, 0);
  let row = 0;
  return last.map((end) => {
    const depths = table.speedup[row].length, good = Array(depths).fill(true), loss = Array(depths).fill(0);
    for (; row <= end; row += 1) {
      const allowed = table.speedup[row].map((value, depth) => (table.allowed[row][depth] ? value : -Infinity));
      const best = Math.max(...allowed);
      allowed.forEach((value, depth) => {
        const relative = value / best;
        if (!(relative >= 1 - minGain)) good[depth] = false;
        loss[depth] += (weights[row] / whole) * Math.min(1 - relative, 1e9);
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
  const segments = loss.length, depths = loss[0].length, before = [];
  const change = (from, to) => (from === to ? 0 : 2 * segments + (to > from ? 1 : 0));
  let total = loss[0];
  for (let segment = 1; segment < segments; segment += 1) {
    const reached = range(depths).map((to) => {
      const ways = total.map((value, from) => value + change(from, to)), best = argmin(ways);
      return [best, ways[best]];
    });
    before.push(reached.map(([from]) => from));
    total = reached.map(([, value], depth) => value + loss[segment][depth]);
  }
  const path = [argmin(total)], changes = Math.floor(Math.min(...total));
  for (let segment = segments - 2; segment >= 0; segment -= 1) path.push(before[segment][path[path.length - 1]]);
  return [path.reverse(), changes];
}

// --- what the formats choose ---

const rowsAt = (table, batches) => batches.map((batch) => {
  const row = table.batches.findIndex((each) => each >= batch);
  return table.speedup[row < 0 ? table.batches.length - 1 : row];
});

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function fixedSchedule(table, batches) {
  const rows = rowsAt(table, batches).map((row) => [1, ...row.slice(1)]);
  const depths = range(rows[0].length), never = depths.map((depth) => rows.every((row) => row[depth] >= 1));
  const any = never.slice(1).includes(true);
  const merit = depths.map((depth) => (!any || never[depth] ? mean(rows.map((row) => Math.log(row[depth]))) : -Infinity));
  return fixed(argmax(merit), table.batches[table.batches.length - 1]);
}

const alwaysDrafting = (table) => ({ ...table, allowed: table.allowed.map(([off, ...rest]) => [off && !rest.includes(true), ...rest]) });

const limited = (table, depth) => ({
  batches: table.batches, fits: table.fits.slice(0, depth + 1),
  speedup: table.speedup.map((row) => row.slice(0, depth + 1)), allowed: table.allowed.map((row) => row.slice(0, depth + 1)),
});

// TensorRT-LLM: batch 1 must have the deepest draft.
function expressible(table, batches, best, minGain) {
  const deepest = maxDepth(best);
  if (best[0].depth === deepest) return best;
  const mayStop = table.allowed.some((row) => row[0]);
  const candidates = range(deepest + 1).filter((depth) => depth || mayStop)
    .map((depth) => makeSchedule(limited(table, depth), minGain, { firstDepth: depth }));
  const rows = rowsAt(table, batches);
  const merits = candidates.map((schedule) => {
    const chosen = rows.map((row, i) => row[depthAt(schedule, batches[i])]);
    return [chosen.every((value, i) => value >= rows[i][0]), mean(chosen.map(Math.log))];
  });
  return candidates[argbest(merits, (a, b) => a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]))];
}

const pays = (table, batches, schedule) => rowsAt(table, batches)
  .some((row, i) => depthAt(schedule, batches[i]) > 0 && row[depthAt(schedule, batches[i])] > 1);

// The engine's setting: { schedule, text, file, needs, notes }. `format`: as site/templates.py wrote it.
export function configuration(format, table, batches, minGain, hurdles) {
  const end = table.batches[table.batches.length - 1], notes = [];
  let schedule, best, kept;
  if (format.style === "fixed") schedule = fixedSchedule(table, batches);
  else if (format.style === "ranges") {
    const beyond = format.sizes ? table.batches.filter((batch) => batch > format.sizes[format.sizes.length - 1]) : [];
    schedule = makeSchedule(table, minGain, { boundaries: format.sizes && [...format.sizes, ...beyond] });
  } else {
    best = makeSchedule(table, minGain);
    const warm = format.warm ? alwaysDrafting(table) : table;
    kept = format.warm ? makeSchedule(warm, minGain) : best;
    schedule = expressible(warm, batches, kept, minGain);
  }
  if (!pays(table, batches, schedule)) {
    return { schedule: fixed(0, end), text: "", file: null, needs: "", notes: batches.length === 1 ? format.off_one : format.off_many };
  }
  if (format.style === "descending") {
    if (format.warm && stops(best)) notes.push(format.starved);
    if (schedule[0].depth !== maxDepth(kept)) notes.push(format.nearest);
    schedule = format.warm ? toTheEnd(schedule) : endingOff(schedule);
    const plain = { ...format.many, notes };
    return { schedule, ...filled(plain, schedule, format, hurdles) };
  }
  const form = schedule.length === 1 ? format.one : stops(schedule) ? format.stops : format.many;
  return { schedule, ...filled(form, schedule, format, hurdles) };
}

const toTheEnd = (schedule) => schedule.map((entry, i) => (i === schedule.length - 1 ? { ...entry, last: MAX_BATCH } : entry));

function endingOff(schedule) {
  const last = schedule[schedule.length - 1];
  return last.depth === 0 || last.last >= MAX_BATCH ? schedule : [...schedule, { first: last.last + 1, last: MAX_BATCH, depth: 0 }];
}

function filled(form, schedule, format, hurdles) {
  const depth = maxDepth(schedule);
  const ending = schedule[schedule.length - 1].depth === 0 ? schedule.slice(0, -1) : schedule;
  const key = (entry) => format.sizes?.find((size) => size >= entry.first) ?? entry.first;
  const values = {
    ranges: `[${schedule.map((entry) => `[${entry.first}, ${entry.last}, ${entry.depth}]`).join(", ")}]`,
    entries: ending.map((entry) => `${entry.last}: ${entry.depth}`).join(", "),
    slots: `{${schedule.map((entry) => `"${key(entry)}": {"candidate_steps": [${entry.depth}]}`).join(", ")}}`,
    depth, "depth+1": depth + 1,
    p_min: Math.min(Math.max(hurdles[depth - 1] ?? 0, 0), 0.99).toFixed(2),
  };
  const fill = (text) => text && text.replace(/\{(ranges|entries|slots|depth\+1|depth|p_min)\}/g, (_, name) => values[name]);
  return { text: fill(form.text), file: fill(form.file), needs: form.needs, notes: form.notes };
}
