// Figures of the static site: the tables of figures/overlay.py, from plans made in the browser.

const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
const LABEL = 26; // characters beside a line

const rounded = (value) => Number(value.toPrecision(4));

// sides: answers with { label, plan, here, at(batch) }. structures: { drafters, "NAME:shape": structure }
export function overlays(answers, structures) {
  const sides = answers.length > 1 ? answers : answers.map((one) => ({ ...one, label: one.plan.drafter }));
  const batch = sides[0].here.batch;
  const curves = sides.map((side, slot) => ({ side, slot: String(slot), rows: curve(side, batch) }));
  const drafters = sides.map((side) => colour(side, structures)), apart = new Set(drafters).size === drafters.length;
  const shape = apart ? "True" : "False";
  const names = ({ side, slot }) => ({ series: side.label, drafter: colour(side, structures), slot });
  const lines = (value) => curves.flatMap((entry) => entry.rows.filter((row) => row.fits)
    .map((row) => ({ batch: row.batch, value: rounded(value(row)), depth: row.depth, ...names(entry) })));
  const source = `Specmargin, prices: ${[...new Set(sides.map((side) => side.plan.prices))].join(" and ")}`;
  const figure = (name, title, takeaway, tables) => ({ name, title, takeaway, source, key: `${name}:${shape}`, tables, structure: structures[`${name}:${shape}`] });
  const speedups = lines((row) => row.speedup), speeds = lines((row) => 1 / row.tpot_seconds), here = [{ batch }];
  return [
    figure("overlay-speedup", "Speed-up by batch", words(sides, (row) => row.speedup, (value) => `${value.toFixed(2)}×`, "speed-up"),
      { lines: speedups, labels: ends(speedups, false), even: [{ value: 1 }], here }),
    figure("overlay-speed", "Tokens/s per user by batch",
      `${words(sides, (row) => 1 / row.tpot_seconds, (value) => `${Math.round(value).toLocaleString("en")} tokens/s`, "speed per user")} Dotted: without speculation.`,
      { lines: speeds, plain: plain(curves, names), labels: ends(speeds, true), here }),
  ].filter((entry) => entry.structure);
}

const colour = (side, structures) => (structures.drafters.includes(side.plan.drafter) ? side.plan.drafter : structures.drafters[0]);

function curve(side, marked) {
  const most = side.plan.no_spec_largest_batch, limit = side.plan.largest_batch;
  const fitting = [...new Set([...BATCHES, marked])].sort((a, b) => a - b).filter((batch) => batch <= most);
  const batches = fitting.length > 1 ? fitting : BATCHES.slice(0, 2);
  const withLimit = limit > 0 && limit < batches[batches.length - 1] ? [...new Set([...batches, limit])].sort((a, b) => a - b) : batches;
  return withLimit.map(side.at);
}

// Without speculation; sides on the same machine share the line of the first.
function plain(curves, names) {
  const drawn = new Map();
  for (const entry of curves) {
    const rows = entry.rows.map((row) => ({ batch: row.batch, value: rounded(1 / row.no_spec_tpot_seconds), ...names(entry) }));
    const key = rows.slice(0, 2).map((row) => row.value).join();
    if (!drawn.has(key)) drawn.set(key, rows);
  }
  return [...drawn.values()].flat();
}

// At the last batch of each line, moved apart where they would touch.
function ends(rows, log) {
  const last = new Map(rows.map((row) => [row.series, row])), values = rows.map((row) => row.value);
  const low = Math.min(...values, log ? Infinity : 1), gap = log ? 0.35 : Math.max(Math.max(...values, 1) - low, 0.1) * 0.06;
  const order = [...last.values()].sort((a, b) => a.value - b.value);
  const heights = order.map((row) => (log ? Math.log2(Math.max(row.value, 1e-12)) : row.value));
  for (let pass = 0; pass < 8; pass += 1) {
    for (let i = 0; i + 1 < heights.length; i += 1) {
      const short = gap - (heights[i + 1] - heights[i]);
      if (short > 0) { heights[i] -= short / 2; heights[i + 1] += short / 2; }
    }
  }
  return order.map((row, i) => ({ ...row, value: log ? 2 ** heights[i] : heights[i], text: row.series.length <= LABEL ? row.series : `${row.series.slice(0, LABEL - 1)}…` }));
}

function words(sides, value, form, what) {
  const fitting = sides.filter((side) => side.here.fits).sort((a, b) => value(b.here) - value(a.here));
  const parts = fitting.map((side) => `${side.label} ${form(value(side.here))}`), rest = sides.filter((side) => !side.here.fits);
  if (rest.length) parts.push(`${rest.map((side) => side.label).join(", ")}: does not fit`);
  return `At batch ${sides[0].here.batch.toLocaleString("en")} (vertical line), ${what}: ${parts.join("; ")}.`;
}
