// Figures of the static site: the tables of show/figures/overlay.py, from plans made in the browser.

import { say } from "./phrases.js";

const rounded = (value) => Number(value.toPrecision(4));

// sides: answers with { label, plan, here, at(batch) }. site: { structures: { drafters, "NAME:shape": … }, phrases, catalog, limits }
export function overlays(answers, site) {
  const { structures, phrases, catalog, limits } = site;
  const sides = answers.length > 1 ? answers : answers.map((one) => ({ ...one, label: one.plan.drafter })), { batch } = sides[0].here;
  const drafters = sides.map((side) => colour(side, structures)), shape = new Set(drafters).size === drafters.length ? "True" : "False";
  const curves = sides.map((side, slot) => ({ rows: curve(side, limits.curve_batches, batch), names: { series: side.label, drafter: drafters[slot], slot: String(slot) } }));
  const source = `Specmargin, prices: ${[...new Set(sides.map((side) => side.plan.prices))].join(" and ")}`;
  const speedup = (row) => row.speedup, speed = (row) => 1 / row.tpot_seconds;
  const figure = (name, value, log, tables) => {
    const rows = curves.flatMap(({ rows: all, names }) => all.filter((row) => row.fits)
      .map((row) => ({ batch: row.batch, value: rounded(value(row)), depth: row.depth, ...names })));
    const key = `${name}:${shape}`, { title } = catalog.figures.find((entry) => entry.name === name);
    return {
      name, title, takeaway: words(name, sides, value, phrases), source, key, structure: structures[key],
      tables: { lines: rows, labels: ends(rows, log, limits.label_characters), here: [{ batch }], ...tables },
    };
  };
  return [pareto(sides[0], curves[0].rows, site), figure("overlay-speedup", speedup, false, { even: [{ value: 1 }] }), figure("overlay-speed", speed, true, { plain: plain(curves) })];
}

// The figure of show/figures/pareto.py, of the first scenario.
function pareto({ plan, here }, rows, { structures, phrases, catalog, measured }) {
  const row = (side, { batch }, seconds, depth) => ({ side, batch, depth, user: rounded(1 / seconds), gpu: rounded(batch / seconds / plan.gpus) });
  const drafting = rows.filter((each) => each.fits).map((each) => ({ ...row("with speculation", each, each.tpot_seconds, each.depth), colour: colour({ plan }, structures) }));
  const plain = rows.map((each) => ({ ...row("no speculation", each, each.no_spec_tpot_seconds, 0), colour: "no speculation" }));
  const known = measured.filter((point) => ["model", "gpu", "gpus", "weights"].every((name) => point[name] === plan[name]) && [null, plan.drafter.split(/[ :]/)[0]].includes(point.drafter));
  const at = drafting.find((each) => each.batch === here.batch), without = plain.find((each) => each.batch === here.batch) ?? plain[plain.length - 1];
  const values = { fits: Boolean(at), batch: without.batch, user: at?.user ?? null, gpu: at?.gpu ?? null, plain_user: without.user, plain_gpu: without.gpu, measured: [...new Set(known.map((point) => point.engine))].join(", ") || null };
  const { title } = catalog.figures.find((entry) => entry.name === "pareto"), key = Object.keys(structures).find((name) => name.startsWith("pareto"));
  return {
    name: "pareto", title, takeaway: say("pareto", phrases, values), source: `Specmargin, prices: ${plan.prices}`, key, structure: structures[key],
    tables: { lines: [...drafting, ...plain], labels: [...drafting.slice(0, 1), ...plain.slice(0, 1)], measured: known.flatMap((point) => point.rows) },
  };
}

const colour = (side, structures) => (structures.drafters.includes(side.plan.drafter) ? side.plan.drafter : structures.drafters[0]);

function curve(side, offered, marked) {
  const most = side.plan.no_spec_largest_batch, limit = side.plan.largest_batch;
  const fitting = [...new Set([...offered, marked])].sort((a, b) => a - b).filter((batch) => batch <= most);
  const batches = fitting.length > 1 ? fitting : offered.slice(0, 2);
  const withLimit = limit > 0 && limit < batches[batches.length - 1] ? [...new Set([...batches, limit])].sort((a, b) => a - b) : batches;
  return withLimit.map(side.at);
}

// Without speculation; sides on the same machine share the line of the first.
function plain(curves) {
  const drawn = new Map();
  for (const { rows: all, names } of curves) {
    const rows = all.map((row) => ({ batch: row.batch, value: rounded(1 / row.no_spec_tpot_seconds), ...names }));
    const key = rows.slice(0, 2).map((row) => row.value).join();
    if (!drawn.has(key)) drawn.set(key, rows);
  }
  return [...drawn.values()].flat();
}

// At the last batch of each line, moved apart where they would touch.
function ends(rows, log, characters) {
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
  return order.map((row, i) => ({ ...row, value: log ? 2 ** heights[i] : heights[i], text: row.series.length <= characters ? row.series : `${row.series.slice(0, characters - 1)}…` }));
}

// The best first.
function words(name, sides, value, phrases) {
  const fitting = sides.filter((side) => side.here.fits).sort((a, b) => value(b.here) - value(a.here));
  const missing = sides.filter((side) => !side.here.fits).map((side) => side.label).join(", ");
  const parts = fitting.map((side) => say(`${name}:side`, phrases, { label: side.label, value: value(side.here) }));
  return say(name, phrases, { batch: sides[0].here.batch, sides: [...parts, say("overlay:missing", phrases, { labels: missing || null })].filter(Boolean).join("; ") });
}
