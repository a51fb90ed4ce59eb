// The plan in words: the port of decisions/verdict.py. Tested against `plan --json`.

import { depthAt, maxDepth } from "./schedule.js";

const whole = (value) => Math.round(value).toLocaleString("en");
const times = (value) => `${value.toFixed(2)}×`;
const sequences = (count) => (count === 1 ? "1 sequence" : `${whole(count)} sequences`);

// `gains`: [batch, speed-up] up to `horizon`, the largest batch that was priced.
export function verdict(plan, view, gains, horizon) {
  const rows = plan.rows.filter((row) => row.fits), pays = rows.some((row) => row.depth > 0 && row.speedup > 1);
  const parts = [advice(plan, view, rows, pays), pays ? paying(plan, view, gains, horizon) : "", change(plan, view), pays ? certainty(plan) : ""];
  return parts.filter(Boolean).join(" ");
}

function advice(plan, view, rows, pays) {
  const subject = `${plan.model} on ${plan.gpus > 1 ? `${plan.gpus} × ` : ""}${plan.gpu} with ${plan.drafter}`;
  if (!rows.length) return `No requested batch fits in memory (${sequences(plan.largest_batch)} would, at a context of ${plan.context}).`;
  if (!pays) return `Do not speculate: ${subject} gains nothing at ${considered(rows)}.`;
  const [first] = rows, best = rows.reduce((most, row) => (row.speedup > most.speedup ? row : most));
  const more = best.batch === first.batch ? "" : `, up to ${times(best.speedup)} at batch ${best.batch}`;
  const deepest = view.prices.maxDepth, capped = rows.some((row) => row.depth === deepest) && !view.drafter.limited;
  return `Speculate: ${subject} is ${times(first.speedup)} as fast at batch ${first.batch}${more}; draft ${steps(plan, view.schedule)}${capped ? ` (${deepest} is the maximum considered)` : ""}.`;
}

function considered(rows) {
  const alone = rows.filter((row) => row.better_depth).reduce((most, row) => (most === null || row.better_speedup > most.better_speedup ? row : most), null);
  if (!alone) return "any batch considered";
  return `one depth for all batches considered (depth ${alone.better_depth} would reach ${times(alone.better_speedup)} at batch ${alone.batch} alone)`;
}

function steps(plan, schedule) {
  const ranges = schedule.filter((entry) => entry.first <= Math.max(plan.largest_batch, 1));
  const kept = ranges.filter((entry, i) => i + 1 === ranges.length || ranges[i + 1].depth !== entry.depth);
  const names = kept.map(({ depth }) => (depth === 0 ? "nothing" : String(depth)));
  if (kept[0].depth > 0) names[0] += kept[0].depth === 1 ? " token" : " tokens";
  if (kept.length === 1) return `${names[0]} at every batch`;
  let parts = kept.slice(0, -1).map(({ last }, i) => `${names[i]} up to ${i ? "" : "batch "}${whole(last)}`);
  if (parts.length > 3) parts = [...parts.slice(0, 2), "…"];
  return [...parts, `${names[names.length - 1]} ${parts[parts.length - 1] === "…" ? "at the largest" : "beyond"}`].join(", ");
}

function spans(ranges) {
  let parts = ranges.map(([first, last]) => (first === last ? whole(first) : `${whole(first)} to ${whole(last)}`));
  if (parts.length > 3) parts = [...parts.slice(0, 2), "…", parts[parts.length - 1]];
  return parts.join(" and ");
}

function paying(plan, view, gains, horizon) {
  const { pays_at_batches: ranges, loses_at_batches: losing, largest_batch: fits } = plan;
  const everywhere = ranges.length === 1 && ranges[0][0] === 1 && ranges[0][1] === horizon;
  const parts = [`It pays ${everywhere ? (fits > horizon ? `at every batch considered, up to ${whole(horizon)}` : `at every batch that fits, up to ${whole(fits)}`)
    : ranges.length ? `at batch ${spans(ranges)}` : "at no batch"}`];
  if (losing.length) {
    const worst = gains.reduce((least, entry) => (entry[1] < least[1] ? entry : least));
    const off = losing.flat().every((batch) => depthAt(view.schedule, batch) === 0);
    parts.push(`it loses at batch ${spans(losing)}${off ? ", where drafting is off" : ""} (${times(worst[1])} at batch ${whole(worst[0])})`);
  }
  if (fits < 0.8 * plan.no_spec_largest_batch) {
    const peak = plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second
      ? `, so peak throughput is higher without speculation (${whole(plan.no_spec_peak_tokens_per_second)} against ${whole(plan.peak_tokens_per_second)} tok/s)` : "";
    parts.push(`with drafts, ${sequences(fits)} fit in memory instead of ${whole(plan.no_spec_largest_batch)}${peak}`);
  }
  return `${parts.join("; ")}.`;
}

function change(plan, { prices, schedule }) {
  const row = plan.rows.find((each) => each.fits) ?? plan.rows[0];
  if (plan.switch_acceptance === null) return `At batch ${row.batch} not even perfect drafts would pay.`;
  const [side, effect] = row.depth === 0 || maxDepth(schedule) === 0 ? ["Above", "some depth pays"] : ["Below", "no depth pays"];
  const context = plan.stops_at_context === null ? "" : `; beyond a context of about ${whole(plan.stops_at_context)} tokens these flags do not pay there`;
  return `${side} a per-token acceptance of ${plan.switch_acceptance.toFixed(2)}, ${effect} at batch ${row.batch} (the plan uses ${prices.survival[0].toFixed(2)} for the first token)${context}.`;
}

function certainty(plan) {
  const row = plan.rows.find((each) => each.fits) ?? plan.rows[0];
  if (row.depth === 0) return "";
  const text = `80% range at batch ${row.batch}: ${row.speedup_low.toFixed(2)} to ${times(row.speedup_high)}`;
  const { phrase, narrow } = plan.largest_unknown;
  return `${text}; the largest unknown is ${phrase} (to narrow it: ${narrow}).`;
}
