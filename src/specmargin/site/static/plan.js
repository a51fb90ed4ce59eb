// The plan of a scenario, with the keys of `plan --json`, from a cell and a state: interpolation and an argmax.

import { verdict } from "./words.js";
import { argmax, configuration, depthAt, maxDepth, spread } from "./schedule.js";

const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const MIN_GAIN = 0.02, MAX_NUM_SEQS = 512, HORIZON = 8192, MAX_BATCH = 65536;
const range = (count) => [...Array(count).keys()];

// --- acceptance ---

export class Unreadable extends Error {}

// 0.8, 0.78,0.58,0.44, length:2.4@3 or accepted:1.4@3: the survival of the given depths.
export function parseAcceptance(text) {
  const mean = /^(length|accepted):([0-9.]+)@([0-9]+)$/.exec(text);
  if (mean) return ofMean(mean[1], Number(mean[2]), Number(mean[3]));
  const values = text.split(",").map(Number);
  if (!/^[0-9.,\s]+$/.test(text) || values.some((value) => !(value >= 0 && value <= 1))) {
    throw new Unreadable("Acceptance is a probability (0.8), a survival curve (0.78,0.58,0.44) or an accept length (length:2.4@3).");
  }
  if (values.some((value, i) => i && value > values[i - 1])) throw new Unreadable("A survival curve cannot rise with depth.");
  return values;
}

function ofMean(kind, mean, depth) {
  const bonus = kind === "length" ? 1 : 0;
  if (!(depth >= 1 && depth <= 64 && mean >= bonus && mean <= depth + bonus)) {
    throw new Unreadable(`At depth ${depth} a round has ${bonus} to ${depth + bonus} tokens, so ${kind}:${mean}@${depth} is impossible.`);
  }
  const powers = (alpha) => range(depth).map((i) => alpha ** (i + 1));
  let low = 0, high = 1;
  for (let i = 0; i < 60; i += 1) {
    const middle = (low + high) / 2;
    if (powers(middle).reduce((sum, value) => sum + value, 0) < mean - bonus) low = middle; else high = middle;
  }
  return powers((low + high) / 2);
}

// S_1..S_depth, extended by the last conditional acceptance.
export function survivalTo(given, depth) {
  const out = given.slice(0, depth), last = given.length - 1;
  const before = last > 0 ? given[last - 1] : 1, ratio = before > 0 ? given[last] / before : 0;
  while (out.length < depth) out.push(out.length ? out[out.length - 1] * ratio : ratio);
  return out;
}

function shifted(survival, shift) {
  let reached = 1, before = 1;
  return survival.map((value) => {
    reached *= Math.min(Math.max(value / Math.max(before, 1e-12) + shift, 0), 1);
    before = value;
    return reached;
  });
}

// The constant acceptance at which 1 + α + … + α^depth is the price of a round over that of a plain step; null: none.
export function breakEven(ratio, depth) {
  if (depth < 1 || !(ratio <= depth + 1)) return null;
  if (ratio <= 1) return 0;
  let low = 0, high = 1;
  for (let i = 0; i < 50; i += 1) {
    const middle = (low + high) / 2, committed = Math.abs(middle - 1) <= 1e-5 ? depth + 1 : (1 - middle ** (depth + 1)) / (1 - middle);
    if (committed < ratio) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

// --- prices of one state ---

class Prices {
  constructor(cell, drafter, tokens, survival, maxDepth) {
    Object.assign(this, { cell, drafter, tokens, survival: survivalTo(survival, maxDepth), maxDepth });
    this.committed = [1];
    this.survival.forEach((value) => this.committed.push(this.committed[this.committed.length - 1] + value));
    this.known = new Map();
  }

  // { plain, round[depth], speedup[depth], allowed[depth] } at a batch
  at(batch, tokens = this.tokens) {
    const key = `${batch}@${tokens}`;
    if (!this.known.has(key)) this.known.set(key, this.priced(batch, tokens));
    return this.known.get(key);
  }

  priced(batch, tokens) {
    const { cell, drafter } = this, plain = cell.plain(tokens, batch), depths = range(this.maxDepth + 1);
    const allowed = depths.map((depth) => cell.allowed(batch, depth));
    const round = depths.map((depth) => (allowed[depth] || depth <= 1 ? cell.round(drafter, tokens, batch, depth) : NaN));
    return { plain, round, allowed, speedup: round.map((seconds, depth) => (this.committed[depth] * plain) / seconds) };
  }

  best(batch) { // the best allowed depth
    const { speedup, allowed } = this.at(batch);
    return argmax(speedup.map((value, depth) => (allowed[depth] ? value : -Infinity)));
  }

  table(largest) {
    const batches = spread(largest), rows = batches.map((batch) => this.at(batch));
    return {
      batches, speedup: rows.map((row) => row.speedup), allowed: rows.map((row) => row.allowed),
      fits: range(this.maxDepth + 1).map((depth) => this.cell.fits(this.drafter, this.tokens, depth)),
    };
  }
}

// --- the plan ---

// `state`: { drafter (index), context, survival (null: the drafter's own), depth, price (per GPU-hour, or null), batch }
export function makePlan(cell, formats, state) {
  const drafter = cell.drafters[state.drafter], depth = Math.min(state.depth, drafter.depth);
  const prices = new Prices(cell, state.drafter, state.context, state.survival ?? drafter.survival, depth);
  const plainFits = cell.plainFits(state.context);
  const batches = BATCHES.filter((batch) => batch <= Math.max(plainFits, 1));
  const held = cell.fits(state.drafter, state.context, Math.max(...batches.map((batch) => prices.best(batch))));
  const largest = Math.max(MAX_NUM_SEQS, Math.min(held, HORIZON), ...batches);
  const planned = batches.filter((batch) => batch <= held);
  const written = (last) => configuration(formats[drafter.kind], prices.table(last), planned.length ? planned : batches, MIN_GAIN, hurdles(prices));
  let setting = written(largest);
  const deepest = maxDepth(setting.schedule);
  // Where shallower drafts are configured than are best somewhere, more sequences fit.
  const reach = deepest > 0 ? Math.min(cell.fits(state.drafter, state.context, deepest), HORIZON) : 0;
  if (reach > largest) setting = written(reach);
  const { schedule } = setting, configured = maxDepth(schedule) > 0;
  const fits = configured ? cell.fits(state.drafter, state.context, maxDepth(schedule)) : plainFits;
  const view = { cell, state, drafter, prices, schedule, configured, fits };
  const rows = batches.map((batch) => rowAt(view, batch));
  const horizon = Math.min(Math.max(fits, 1), HORIZON), gains = outcome(view, horizon);
  const plan = {
    model: cell.model, gpu: cell.gpu, gpus: cell.gpus, parallel: "tp", engine: cell.engine, drafter: drafter.name,
    context: state.context, prices: cell.prices, weights: cell.weights, kv_cache: cell.kv_cache, routing: cell.routing,
    sources: sourcesOf(drafter, state), warnings: cell.warnings[rows[0].depth], rows,
    pays_at_batches: where(gains, (gain) => gain > 1), loses_at_batches: where(gains, (gain) => gain < 1),
    stops_at_context: stopsAtContext(view, batches[0]), switch_acceptance: switchAcceptance(prices, batches[0]),
    largest_batch: fits, no_spec_largest_batch: plainFits,
    peak_tokens_per_second: peak(fits, (batch) => batch / tpot(view, batch)),
    no_spec_peak_tokens_per_second: peak(plainFits, (batch) => batch / prices.at(batch).plain),
    config_supported: true, config: setting.text, config_needs: setting.needs, config_file: setting.file, config_notes: setting.notes,
    largest_unknown: unknown(view, rows),
    schedule: schedule.map((entry) => [entry.first, entry.last, entry.depth]),
    serve: served(cell.commands, setting, rows.find((row) => row.fits) ?? rows[0], state.context),
  };
  plan.verdict = verdict(plan, view, gains, horizon);
  const row = rowAt(view, state.batch);
  return { plan, here: { ...row, check: checked(cell.commands, row, state.context), ...facts(view) }, at: (batch) => rowAt(view, batch) };
}

// The command that starts the server, with its file. llama.cpp has slots for the sequences of a row.
function served(commands, { text, file }, row, context) {
  const template = text ? commands.on : commands.off;
  const values = { config: text, file: file ?? "", sequences: row.batch, tokens: row.batch * (Math.round(context) + commands.output_tokens) };
  const fill = (given) => given && given.replace(/\{(config|file|sequences|tokens)\}/g, (_, name) => values[name]);
  const needsFile = template.file_text && !(template.file_text === "{file}" && !file);
  return {
    command: fill(template.command), file_name: needsFile ? template.file_name : null,
    file_text: needsFile ? fill(template.file_text) : null, notes: template.notes,
  };
}

// The benchmark that checks a row, and what it should show.
function checked(commands, row, context) {
  const input = Math.max(Math.round(context) - Math.floor(commands.output_tokens / 2), 1);
  const far = (tokens) => Math.abs(Math.log(tokens / input));
  const [subset] = Object.entries(commands.subsets).reduce((best, entry) => (far(entry[1]) < far(best[1]) ? entry : best));
  const shown = (seconds) => (commands.per_second ? 1 / seconds : seconds * 1e3);
  const values = { batch: row.batch, prompts: Math.max(32, 10 * row.batch), subset };
  return {
    command: commands.check.replace(/\{(batch|prompts|subset)\}/g, (_, name) => values[name]), metric: commands.metric,
    predicted: shown(row.tpot_seconds), predicted_without_speculation: shown(row.no_spec_tpot_seconds),
    ratio: row.speedup, ratio_low: row.speedup_low, ratio_high: row.speedup_high,
  };
}

function facts({ cell, drafter, prices }) {
  return {
    experts: cell.experts, survival: prices.survival, drafter: drafter.name, drafters: cell.drafters.map((each) => each.kind),
    moe_layers: cell.moe_layers, prices: cell.prices, routing: cell.routing, fixed: { gpus: String(cell.gpus) },
    min_context: cell.allContexts[0], max_context: cell.longest,
  };
}

// At batch 1: the survival at which verifying token 1, 2, … pays.
function hurdles(prices) {
  const { cell, tokens } = prices, { round } = prices.at(1);
  return range(prices.maxDepth).map((i) => (cell.verify(tokens, 1, i + 1) - cell.verify(tokens, 1, i)) * (prices.committed[i + 1] / round[i + 1]));
}

// Seconds between tokens under the setting.
function tpot({ prices, schedule, configured }, batch, tokens) {
  const at = prices.at(batch, tokens), depth = depthAt(schedule, batch);
  return configured ? at.round[depth] / prices.committed[depth] : at.plain;
}

function rowAt(view, batch) {
  const { cell, prices, schedule, fits, state } = view, at = prices.at(batch);
  const depth = depthAt(schedule, batch), seconds = tpot(view, batch), speedup = at.plain / seconds;
  const even = Math.min(Math.max(depth, 1), prices.maxDepth), ratio = at.round[even] / at.plain, alpha = breakEven(ratio, even);
  const hours = (cell.gpus * 1e6 * seconds) / batch / 3600, more = cell.oneMore(state.context, batch, depth);
  const row = {
    batch, depth, speedup, ...sure(view, batch, depth, speedup),
    goodput_tokens_per_second: batch / seconds, no_spec_tokens_per_second: batch / at.plain,
    tpot_seconds: seconds, no_spec_tpot_seconds: at.plain, ...better(at, speedup),
    ...hurdleOf((batch / seconds) * more.seconds), distinct_experts: more.experts, bound_by: more.bound,
    break_even_acceptance: alpha, break_even_accept_length: alpha === null ? null : Math.max(ratio, 1), break_even_depth: even,
    gpu_hours_per_million_tokens: hours, fits: batch <= fits,
  };
  if (state.price === null) return row;
  return { ...row, cost_per_million_tokens: hours * state.price, no_spec_cost_per_million_tokens: hours * state.price * speedup, currency: "USD" };
}

const hurdleOf = (hurdle) => (hurdle > 1 ? { hurdle: null, hurdle_note: "never pays" }
  : hurdle <= 0 ? { hurdle: null, hurdle_note: "always pays" } : { hurdle, hurdle_note: null });

// Another depth that is faster by more than MIN_GAIN; depth 0: without speculation.
function better(at, speedup) {
  const values = at.speedup.map((value, depth) => (depth === 0 ? 1 : at.allowed[depth] ? value : 0));
  const depth = argmax(values), gains = (values[depth] / speedup) * (1 - MIN_GAIN) > 1 + 1e-9;
  return { better_depth: gains ? depth : null, better_speedup: gains ? values[depth] : null };
}

// The 80% range: prices, acceptance and borrowed routing, independent of each other.
function sure(view, batch, depth, speedup) {
  if (depth === 0) return { speedup_low: speedup, speedup_high: speedup };
  const { acceptance, routing } = widths(view, batch, depth), [low, high] = view.cell.price_errors;
  return {
    speedup_low: speedup * Math.exp(-Math.hypot(Math.min(low, 0), acceptance[0], routing)),
    speedup_high: speedup * Math.exp(Math.hypot(Math.max(high, 0), acceptance[1], routing)),
  };
}

// Of the row that the verdict names: the input that widens its range most, among those that can be known better.
function unknown({ cell, state, drafter, prices }, rows) {
  const row = rows.find((each) => each.fits) ?? rows[0];
  if (row.depth === 0) return null;
  const { acceptance, routing } = widths({ cell, state, drafter, prices }, row.batch, row.depth), [low, high] = cell.price_errors;
  const origin = { tables: "measured kernels", laws: "measured kernels", scaled: "scaled kernels", datasheet: "datasheet" }[cell.prices];
  const inputs = [{ width: Math.max(high, 0) - Math.min(low, 0), phrase: `prices (${origin})`, narrow: "specmargin measure vllm" }];
  if (!state.survival) {
    const phrase = drafter.borrowed_acceptance ? "acceptance, borrowed from other models" : "acceptance, measured on a benchmark";
    inputs.push({ width: acceptance[1] - acceptance[0], phrase, narrow: "specmargin profile acceptance" });
  }
  if (cell.borrowed_routing) inputs.push({ width: 2 * routing, phrase: "routing, borrowed from another model", narrow: "specmargin profile routing" });
  return inputs.reduce((most, entry) => (entry.width > most.width ? entry : most));
}

const sourcesOf = (drafter, { survival, given }) => (survival ? { ...drafter.sources, acceptance: `measured: ${given}, given by the user` } : drafter.sources);

// Logarithms of the factors by which acceptance and routing could change a speed-up.
function widths({ cell, state, drafter, prices }, batch, depth) {
  const survival = prices.survival.slice(0, depth), committed = prices.committed[depth];
  const shift = state.survival ? [0, 0] : drafter.shift;
  return {
    acceptance: shift.map((by) => Math.log((1 + shifted(survival, by).reduce((sum, value) => sum + value, 0)) / committed)),
    routing: Math.abs(cell.uniformShift(state.drafter, state.context, batch, depth) ?? 0),
  };
}

// --- where it pays ---

function outcome(view, upTo) {
  const turns = view.schedule.flatMap((entry) => [entry.last, entry.last + 1]).filter((batch) => batch <= upTo);
  const batches = [...new Set([...spread(upTo), ...turns])].sort((a, b) => a - b);
  const gain = (batch) => [batch, view.prices.at(batch).plain / tpot(view, batch)];
  const gains = batches.map(gain), side = ([, value]) => Math.sign(value - 1);
  return gains.flatMap((entry, i) => {
    const next = gains[i + 1];
    if (!next || side(entry) === side(next)) return [entry];
    return [entry, ...range(next[0] - entry[0] - 1).map((j) => gain(entry[0] + 1 + j))];
  });
}

function where(gains, chosen) {
  const ranges = [];
  gains.forEach(([batch, gain], i) => {
    if (!chosen(gain)) return;
    if (i && chosen(gains[i - 1][1])) ranges[ranges.length - 1][1] = batch; else ranges.push([batch, batch]);
  });
  return ranges;
}

function stopsAtContext(view, batch) {
  if (view.prices.maxDepth === 0) return null;
  const longest = view.cell.max_context ?? 1048576;
  const contexts = [...new Set(range(27).map((i) => Math.min(2 ** (7 + i / 2), longest)))];
  const pays = contexts.map((tokens) => view.prices.at(batch, tokens).plain / tpot(view, batch, tokens) > 1);
  const last = pays.lastIndexOf(true);
  return last < 0 || last === pays.length - 1 ? null : Math.floor(contexts[last + 1]);
}

function switchAcceptance(prices, batch) {
  const { plain, round, allowed } = prices.at(batch);
  const even = round.map((seconds, depth) => (depth && allowed[depth] ? breakEven(seconds / plain, depth) : null)).filter((value) => value !== null);
  return even.length ? Math.min(...even) : null;
}

function peak(largest, goodput) {
  const last = Math.max(Math.min(largest, MAX_BATCH), 1);
  const batches = new Set(range(200).map((i) => Math.round(last ** (i / 199))));
  return Math.max(...[...batches].map(goodput));
}
