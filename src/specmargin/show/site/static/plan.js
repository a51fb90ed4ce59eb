// The plan of a scenario, with the keys of `plan --json`: interpolation in a cell, and arithmetic on its prices. Limits, rules
// and sentences are data that Python wrote (`site`: see show/site/pages.py).

import { between } from "./cell.js";
import { place } from "./knots.js";
import { fill, say } from "./phrases.js";
import { choose, extended, pays } from "./rules.js";
import { argmax, depthAt, maxDepth, range, spread } from "./schedule.js";
import { breakEven, shifted, survivalTo, understood } from "./survival.js";
import { verdict } from "./words.js";

class Prices {
  constructor(slice, drafter, survival, depth) {
    Object.assign(this, { slice, drafter, survival: survivalTo(survival, depth), maxDepth: depth, known: new Map() });
    this.committed = [1];
    this.survival.forEach((value) => this.committed.push(this.committed[this.committed.length - 1] + value));
  }

  // { plain, round[depth], speedup[depth], allowed[depth] } at a batch
  at(batch) {
    if (!this.known.has(batch)) this.known.set(batch, this.priced(batch));
    return this.known.get(batch);
  }

  priced(batch) {
    const { slice, drafter } = this, at = place(slice.cell.batches, batch), plain = between(slice.plain, at), depths = range(this.maxDepth + 1);
    const round = depths.map((depth) => between(slice.rounds[drafter][depth], at));
    return { plain, round, allowed: depths.map((depth) => slice.allowed(batch, depth)), speedup: round.map((seconds, depth) => (this.committed[depth] * plain) / seconds) };
  }

  best(batch) { // the best allowed depth
    const { speedup, allowed } = this.at(batch);
    return argmax(speedup.map((value, depth) => (allowed[depth] ? value : -Infinity)));
  }

  fits(depth) { return this.slice.fits(this.drafter, depth); }

  table(largest) {
    const batches = spread(largest), rows = batches.map((batch) => this.at(batch));
    return { batches, speedup: rows.map((row) => row.speedup), allowed: rows.map((row) => row.allowed), fits: range(this.maxDepth + 1).map((depth) => this.fits(depth)) };
  }

  // At batch 1: the survival at which verifying token 1, 2, … pays.
  hurdles() {
    const { slice: { verify }, committed } = this, { round } = this.at(1);
    return range(this.maxDepth).map((i) => (verify[i + 1][0] - verify[i][0]) * (committed[i + 1] / round[i + 1]));
  }
}

// `state`: { drafter (index), context, survival (null: the drafter's own), depth, price (per GPU-hour, or null), batch }
export function makePlan(slice, site, state) {
  const { limits } = site, { cell } = slice, drafter = cell.drafters[state.drafter];
  const prices = new Prices(slice, state.drafter, state.survival ?? drafter.survival, Math.min(state.depth, drafter.depth));
  const plainFits = slice.plainFits(), usual = drafter.format.usual_batch ?? Infinity, batches = limits.batches.filter((batch) => batch <= Math.max(Math.min(plainFits, usual), 1));
  const shown = [...new Set([...batches, state.batch])].sort((a, b) => a - b); // the batch asked about has a row
  const setting = settingOf(prices, drafter.format, batches, limits);
  const { schedule } = setting, configured = maxDepth(schedule) > 0, fits = configured ? prices.fits(maxDepth(schedule)) : plainFits;
  const hour = state.price === null ? cell.plan.gpu_hour : { usd: state.price, assumed: false, source: null, month: null };
  const view = { cell, slice, state, drafter, prices, schedule, configured, fits, limits, hour };
  const rows = shown.map((batch) => rowAt(view, batch)), asked = rows.find((each) => each.batch === state.batch);
  const counted = Math.max(usual, ...shown), reach = Math.min(fits, counted), plainReach = Math.min(plainFits, counted); // `make_plan`
  const gains = outcome(view, Math.min(Math.max(reach, 1), limits.horizon));
  const plan = {
    ...cell.plan, gpu_hour: hour, drafter: drafter.name, context: state.context, sources: sourcesOf(drafter, state), warnings: [...cell.warnings[rows[0].depth], ...extrapolated(state.survival?.length ?? drafter.known, maxDepth(schedule), site.phrases)], rows,
    pays_at_batches: where(gains, (gain) => gain > 1), loses_at_batches: where(gains, (gain) => gain < 1),
    stops_at_context: stopsAtContext(view), switch_acceptance: switchAcceptance(prices, shown[0]),
    largest_batch: fits, no_spec_largest_batch: plainFits,
    peak_tokens_per_second: peak(Math.min(reach, limits.max_batch), (batch) => batch / tpot(view, batch)),
    no_spec_peak_tokens_per_second: peak(Math.min(plainReach, limits.max_batch), (batch) => batch / prices.at(batch).plain),
    config: setting.text, config_needs: setting.needs, config_file: setting.file, config_notes: setting.notes, schedule,
    serve: served(cell.commands, setting, asked, state.context),
  };
  const pays = rows.some((each) => each.fits && each.depth > 0 && each.speedup > 1), drafted = asked.fits && asked.depth > 0, losesCapacity = lessCapacity(view, plan, Math.min(reach, plainReach)), limit = limitOf(plan, gains, losesCapacity, limits.min_gain);
  const judged = drafted || pays ? asked : bestDraft(view, asked.fits ? [asked] : []) ?? asked, sure = rangeOf(view, judged.batch, judged.depth, judged.speedup), clear = certainty(view, rows, gains);
  const spansOne = sure.low <= 1 && sure.high >= 1;
  plan.advice = !asked.fits ? "none-fits" : !drafted ? (pays ? "do-not-speculate" : refusal(judged, sure)) : spansOne ? "uncertain" : asked.speedup <= 1 ? "do-not-speculate" : limit ? "speculate-up-to-batch" : "speculate";
  plan.headline = { batch: judged.batch, depth: judged.depth, speedup: judged.speedup, speedup_low: sure.low, speedup_high: sure.high };
  plan.surely_pays_at_batches = where(gains, (_, batch) => clear(batch).low > 1);
  plan.uncertain_at_batches = where(gains, (_, batch) => clear(batch).low <= 1 && clear(batch).high >= 1);
  const surelyLosing = where(gains, (gain, batch) => gain < 1 && !(clear(batch).low <= 1 && clear(batch).high >= 1));
  plan.inputs = sure.inputs;
  plan.verdict = verdict(plan, { ...view, gains, judged, drafted, pays, losesCapacity, limit, surelyLosing, ...sure }, site.phrases);
  const here = rowAt(view, state.batch);
  return { plan, here: { ...here, check: checked(cell.commands, here, state.context), ...facts(view) }, at: (batch) => rowAt(view, batch) };
}

function facts({ cell, drafter, prices }) {
  const { prices: source, routing, gpus } = cell.plan;
  return {
    experts: cell.experts, survival: prices.survival, drafter: drafter.name, drafter_titles: cell.drafter_titles, drafters: cell.drafters.map((each) => each.kind),
    moe_layers: cell.moe_layers, prices: source, routing, fixed: { gpus: String(gpus) }, min_context: cell.contexts[0], max_context: cell.contexts[cell.contexts.length - 1],
  };
}

const sourcesOf = (drafter, { survival, given }) => (survival ? { ...drafter.sources, acceptance: `measured: ${given}, given by the user: ${understood(given, survival)}` } : drafter.sources);

// Drafts deeper than a curve of acceptance; one value is meant for every depth.
const extrapolated = (known, last, phrases) => (known > 1 && known < last ? [say("extrapolated", phrases, { known_depth: known, last_depth: last })] : []);

// --- the engine's setting: { schedule, text, file, needs, notes } ---

function settingOf(prices, format, batches, limits) {
  const held = prices.fits(Math.max(...batches.map((batch) => prices.best(batch)))), planned = batches.filter((batch) => batch <= held);
  const written = (last) => configuration(prices, format, last, planned.length ? planned : batches, limits);
  const largest = Math.max(limits.max_num_seqs, Math.min(held, limits.horizon), ...batches), setting = written(largest);
  const deepest = maxDepth(setting.schedule), reach = deepest > 0 ? Math.min(prices.fits(deepest), limits.horizon) : 0;
  return reach > largest ? written(reach) : setting; // shallower drafts were configured than are best somewhere: more sequences fit
}

function configuration(prices, format, last, batches, limits) {
  const table = prices.table(last), chosen = choose(format, table, batches, limits.min_gain);
  if (!pays(table, batches, chosen.schedule)) {
    return { schedule: [[1, last, 0]], text: "", file: null, needs: "", notes: batches.length === 1 ? format.off_one : format.off_many };
  }
  const schedule = extended(chosen.schedule, format, limits.max_batch), depth = maxDepth(schedule);
  const form = schedule.length === 1 ? format.one : schedule.some((entry) => entry[2] === 0) ? format.stops : format.many;
  const entries = format.beyond && schedule[schedule.length - 1][2] === 0 ? schedule.slice(0, -1) : schedule; // beyond the last, off
  const key = (batch) => format.ends.find((size) => size >= batch) ?? batch;
  const values = {
    depth, positions: depth + 1, p_min: Math.min(Math.max(prices.hurdles()[depth - 1], 0), 0.99).toFixed(2),
    entries: entries.map(([first, end, each]) => fill(format.entry, { first, last: end, depth: each, key: key(first) })).join(", "),
  };
  return { schedule, text: fill(form.text, values), file: form.file && fill(form.file, values), needs: form.needs, notes: [...chosen.limits, ...form.notes] };
}

// The command that starts the server, with its file. llama.cpp has slots for the sequences of a row.
function served(commands, { text, file }, row, context) {
  const template = text ? commands.on : commands.off;
  const values = { config: text, file: file ?? "", sequences: row.batch, tokens: row.batch * (Math.round(context) + commands.output_tokens) };
  const written = (template.file_text && fill(template.file_text, values)) || null;
  return { command: fill(template.command, values), file_name: written && template.file_name, file_text: written, notes: template.notes };
}

// The benchmark that checks a row, and what it should show.
function checked(commands, row, context) {
  const input = Math.max(Math.round(context) - Math.floor(commands.output_tokens / 2), 1), far = ([, tokens]) => Math.abs(Math.log(tokens / input));
  const [subset] = Object.entries(commands.subsets).reduce((best, entry) => (far(entry) < far(best) ? entry : best));
  const shown = (seconds) => (commands.per_second ? 1 / seconds : seconds * 1e3);
  return {
    command: fill(commands.check, { batch: row.batch, prompts: Math.max(commands.prompts.least, commands.prompts.per_user * row.batch), subset }), metric: commands.metric,
    predicted: shown(row.tpot_seconds), predicted_without_speculation: shown(row.no_spec_tpot_seconds),
    ratio: row.speedup, ratio_low: row.speedup_low, ratio_high: row.speedup_high,
  };
}

// --- rows ---

// Seconds between tokens under the setting.
function tpot({ prices, schedule, configured }, batch, depth = depthAt(schedule, batch)) {
  const at = prices.at(batch);
  return configured ? at.round[depth] / prices.committed[depth] : at.plain;
}

function rowAt(view, batch, depth = depthAt(view.schedule, batch)) {
  const { cell, slice, prices, fits, state } = view, at = prices.at(batch);
  const seconds = tpot(view, batch, depth), speedup = at.plain / seconds, sure = rangeOf(view, batch, depth, speedup);
  const even = Math.min(Math.max(depth, 1), prices.maxDepth), ratio = at.round[even] / at.plain, alpha = breakEven(ratio, even);
  const more = slice.oneMore(state.drafter, batch, depth), hurdle = (batch / seconds) * more.share * at.plain;
  const hours = (cell.plan.gpus * 1e6 * seconds) / batch / 3600;
  const row = {
    batch, depth, speedup, speedup_low: sure.low, speedup_high: sure.high,
    goodput_tokens_per_second: batch / seconds, no_spec_tokens_per_second: batch / at.plain,
    tpot_seconds: seconds, no_spec_tpot_seconds: at.plain, ...better(at, speedup, view.limits.min_gain),
    hurdle: hurdle > 1 || hurdle <= 0 ? null : hurdle, hurdle_note: hurdle > 1 ? view.limits.never_pays : hurdle <= 0 ? view.limits.always_pays : null,
    distinct_experts: more.experts, bound_by: more.bound,
    break_even_acceptance: alpha, break_even_accept_length: alpha === null ? null : Math.max(ratio, 1), break_even_depth: even,
    gpu_hours_per_million_tokens: hours, fits: batch <= fits,
  };
  if (view.hour === null) return row;
  const cost = hours * view.hour.usd;
  return { ...row, cost_per_million_tokens: cost, no_spec_cost_per_million_tokens: cost * speedup, currency: "USD" };
}

// Where nothing is drafted: the draft that comes nearest to a gain, or would gain at one batch alone.
function bestDraft(view, fitting) {
  const { prices } = view, drafts = fitting.flatMap(({ batch }) => range(prices.maxDepth).map((i) => [batch, i + 1]));
  const possible = drafts.filter(([batch, depth]) => prices.at(batch).allowed[depth] && batch <= prices.fits(depth));
  if (!possible.length) return null;
  const [batch, depth] = possible[argmax(possible.map(([size, deep]) => prices.at(size).speedup[deep]))];
  return rowAt({ ...view, configured: true }, batch, depth);
}

// Whether peak throughput falls, mostly since memory for drafts leaves fewer sequences: `Plan.loses_capacity`.
function lessCapacity({ prices, limits }, { peak_tokens_per_second: reached, no_spec_peak_tokens_per_second: plain }, largest) {
  return reached < (1 - limits.min_gain) * plain && 2 * peak(Math.min(largest, limits.max_batch), (batch) => batch / prices.at(batch).plain) <= plain + reached;
}

// The last batch that pays, if it must be told: `Plan.limit`.
function limitOf({ pays_at_batches: paying, loses_at_batches: losing }, gains, losesCapacity, minGain) {
  if (!paying.length) return null;
  const [, last] = paying[paying.length - 1], loses = losing.length > 0 && losing[0][0] > last && Math.min(...gains.map(([, gain]) => gain)) < 1 - minGain;
  return loses || losesCapacity ? last : null;
}

const refusal = (judged, sure) => (judged.depth > 0 && judged.speedup <= 1 && sure.high >= 1 ? "uncertain" : "do-not-speculate");

// Another depth that is faster by more than `minGain`; depth 0: without speculation.
function better(at, speedup, minGain) {
  const values = at.speedup.map((value, depth) => (depth === 0 ? 1 : at.allowed[depth] ? value : 0));
  const depth = argmax(values), gains = (values[depth] / speedup) * (1 - minGain) > 1 + 1e-9;
  return { better_depth: gains ? depth : null, better_speedup: gains ? values[depth] : null };
}

// The 80% range of a speed-up, and the input that widens it most, among those that can be known better.
function rangeOf({ cell, slice, state, drafter, prices }, batch, depth, speedup) {
  if (depth === 0) return { low: speedup, high: speedup, unknown: null, inputs: [] };
  const committed = (by) => 1 + shifted(prices.survival.slice(0, depth), by).reduce((sum, value) => sum + value, 0);
  const moved = Math.abs(slice.uniformShift(state.drafter, batch, depth));
  const inputs = [slice.priceRange(state.drafter, batch, depth)]; // logarithms of the factors by which each could change the speed-up
  if (!state.survival) inputs.push({ ...drafter.acceptance, range: drafter.shift.map((by) => Math.log(committed(by) / prices.committed[depth])) });
  else inputs.push({ name: "acceptance", origin: "yours", range: [0, 0] });
  if (cell.routing_range) inputs.push({ ...cell.routing_range, range: [-moved, moved] });
  const width = ({ range: [low, high] }) => high - low;
  return {
    low: speedup * Math.exp(-Math.hypot(...inputs.map((input) => input.range[0]))),
    high: speedup * Math.exp(Math.hypot(...inputs.map((input) => input.range[1]))),
    inputs, unknown: inputs.reduce((most, entry) => (width(entry) > width(most) ? entry : most)),
  };
}

// --- where it pays ---

// [batch, speed-up] of every batch where the setting changes or its gain turns to a loss; the others are smooth.
function outcome(view, upTo) {
  const turns = view.schedule.flatMap(([, last]) => [last, last + 1]).filter((batch) => batch <= upTo);
  const gain = (batch) => [batch, view.prices.at(batch).plain / tpot(view, batch)], side = ([, value]) => Math.sign(value - 1);
  const gains = [...new Set([...spread(upTo), ...turns])].sort((a, b) => a - b).map(gain);
  return gains.flatMap((entry, i) => {
    const next = gains[i + 1];
    return !next || side(entry) === side(next) ? [entry] : [entry, ...range(next[0] - entry[0] - 1).map((j) => gain(entry[0] + 1 + j))];
  });
}

function where(gains, chosen) {
  const ranges = [];
  gains.forEach(([batch, gain], i) => {
    if (!chosen(gain, batch)) return;
    if (i && chosen(gains[i - 1][1], gains[i - 1][0])) ranges[ranges.length - 1][1] = batch; else ranges.push([batch, batch]);
  });
  return ranges;
}

// The range at any batch: between the rows its width is interpolated. Where nothing is drafted there is none.
function certainty({ schedule, configured }, rows, gains) {
  const drafting = rows.filter(({ depth }) => depth > 0), knots = drafting.map(({ batch }) => Math.log(batch));
  const widths = ["speedup_low", "speedup_high"].map((end) => drafting.map((row) => Math.log(row[end] / row.speedup)));
  const known = new Map(gains.map(([batch, gain]) => {
    if (!drafting.length || !configured || depthAt(schedule, batch) === 0) return [batch, { low: 0, high: 0 }];
    const [at, share] = place(knots, Math.log(batch)), inside = [at, Math.min(Math.max(share, 0), 1)];
    const [low, high] = widths.map((width) => gain * Math.exp(between(width, inside)));
    return [batch, { low, high }];
  }));
  return (batch) => known.get(batch);
}

// At batch 1, among the contexts that Python searched.
function stopsAtContext({ cell, drafter, prices, schedule, configured }) {
  const depth = depthAt(schedule, 1), paying = drafter.ratios[depth].map((ratio) => configured && prices.committed[depth] / ratio > 1), last = paying.lastIndexOf(true);
  return last < 0 || last === paying.length - 1 ? null : Math.floor(cell.searched[last + 1]);
}

function switchAcceptance(prices, batch) {
  const { plain, round, allowed } = prices.at(batch);
  const even = round.map((seconds, depth) => (depth && allowed[depth] ? breakEven(seconds / plain, depth) : null)).filter((value) => value !== null);
  return even.length ? Math.min(...even) : null;
}

function peak(largest, goodput) {
  const batches = new Set(range(200).map((i) => Math.round(Math.max(largest, 1) ** (i / 199))));
  return Math.max(...[...batches].map(goodput));
}
