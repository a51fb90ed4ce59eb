// The answer on the page: line, strip, bullets, tiles, flags, commands and table, all from one plan.

import { bottleneck, bound, commandOf, loadOf, PRICES, summary } from "./answer.js";
import { byId, element, times, whole } from "./dom.js";
import { term } from "./glossary.js";

const range = (row) => (row.depth ? `${row.speedup_low.toFixed(2)} to ${times(row.speedup_high)}` : "–");
// What one more draft token would add, 0 where its step has no CUDA graph; providers without it show none.
const more = ({ gain }) => (gain === 0 ? "–" : `${gain < 0 ? "−" : "+"}${Math.abs(gain * 100).toFixed(1)}%`);
const better = (row) => (row.better_depth === null ? "" : `${row.better_depth || "none"}: ${times(row.better_speedup)}`);
const inSeconds = (seconds) => `${seconds >= 100 ? whole(seconds) : seconds.toFixed(1)} s`; // beyond 10,000 ms
const milliseconds = (seconds) => (seconds === null ? "–" : seconds >= 10 ? inSeconds(seconds) : seconds >= 1 ? whole(seconds * 1e3) : (seconds * 1e3).toFixed(2)); // null: requests of one token
const latency = (seconds) => (seconds === null || seconds >= 10 ? milliseconds(seconds) : `${milliseconds(seconds)} ms`);
const firstToken = (side) => (side.queue_growth_per_second ? "grows" : latency(side.ttft_seconds)); // without end: the queue does
const dollars = (value) => `$${value < 1 ? value.toFixed(3) : value.toFixed(2)}`;

export function show(answer, state) {
  const { plan, here } = answer;
  const short = summary(answer, state);
  byId("line").textContent = short.line;
  byId("answer").dataset.says = short.says;
  byId("subject").textContent = subject(plan, here);
  showStrip(short.strip, here);
  byId("bullets").replaceChildren(...short.bullets.map(({ topic, text }) => element("li", { "data-topic": topic }, text)));
  showTiles(plan, here);
  showFlags(plan, short);
  showCommands(plan, here, short.says);
  showRows(plan, here);
  byId("sentence").textContent = plan.verdict;
  byId("sources").replaceChildren(...Object.entries(plan.sources).map(([name, source]) => element("li", {}, element("b", {}, `${name}: `), source)));
}

function subject(plan, here) {
  const gpus = plan.gpus > 1 ? `${plan.gpus} × ${plan.gpu} (${plan.parallel})` : plan.gpu;
  const shown = [`${plan.model} on ${gpus}`, drafterOf(plan, here), `context ${whole(plan.context)}`, `weights ${plan.weights}`, `KV ${plan.kv_cache}`];
  const inputs = (plan.inputs ?? []).map(({ name, origin }) => `${name}: ${(name === "prices" && PRICES[plan.prices]) || origin}`);
  return [shown.join(", "), ...inputs].join("; ");
}

// What the drafter is: "an EAGLE-3 head (you need one)".
const drafterOf = (plan, here) => here.drafter_titles?.[here.drafter] ?? plan.drafter;

function showStrip(ranges, here) {
  const widths = ranges.map(({ first, last }) => Math.log2(last + 1) - Math.log2(first) + 0.4);
  byId("strip").replaceChildren(...ranges.map(({ first, last, depth, here: marked }, i) => element("li",
    { "data-depth": depth, "data-first": first, "data-last": last, class: `${depth ? "drafting" : "off"}${marked ? " here" : ""}` },
    element("b", {}, depth ? String(depth) : "off", depth && !i ? element("small", {}, ` draft token${depth > 1 ? "s" : ""}`) : null),
    element("span", {}, first === last ? `batch ${whole(first)}` : `${i ? "" : "batch "}${whole(first)} to ${whole(last)}`))));
  [...byId("strip").children].forEach((node, i) => {
    node.style.flexGrow = widths[i];
    node.style.setProperty("--deep", `${Math.min(ranges[i].depth, 8) * 4 + (ranges[i].depth ? 10 : 0)}%`);
  });
  byId("strip").dataset.batch = here.batch;
}

function tiles(plan, here) {
  const { service } = plan;
  const list = [];
  if (service) {
    const { speculating: { depth, sequences } } = service; // nothing drafted: no range, no batch, no drafter
    list.push(["speed-up", times(service.speedup), depth && `${service.speedup_low.toFixed(2)} to ${times(service.speedup_high)}; decode steps ${times(here.speedup)}`]);
    list.push(["draft", depth ? depth.toFixed(1) : "off", depth && `on average at batch ${whole(sequences)}, from ${drafterOf(plan, here)}`]);
    list.push(["tokens/s", whole(service.speculating.tokens_per_second), `${whole(service.plain.tokens_per_second)} without`]);
    list.push(["tpot", latency(service.speculating.tpot_seconds), `per token; ${latency(service.plain.tpot_seconds)} without`]);
    list.push(["ttft", firstToken(service.speculating), `to the first token; ${firstToken(service.plain)} without`]);
  } else {
    list.push(["speed-up", times(here.speedup), here.fits ? range(here) : "does not fit in memory"]);
    list.push(["draft", here.depth || "off", better(here) ? `better here: ${better(here)}` : here.depth && `tokens from ${drafterOf(plan, here)}`]);
    list.push(["tokens/s", whole(here.goodput_tokens_per_second), `${whole(here.no_spec_tokens_per_second)} without`]);
    list.push(["ms/token", milliseconds(here.tpot_seconds), `${milliseconds(here.no_spec_tpot_seconds)} without`]);
  }
  const cost = costs(plan, here);
  if (cost) list.push(["$/M tokens", dollars(cost.drafting), saving(cost, plan)].concat(plan.gpu_hour.assumed ? `at $${plan.gpu_hour.usd} per GPU-hour (assumed: ${plan.gpu_hour.source} ${plan.gpu_hour.month})` : []));
  list.push(["break-even", here.break_even_acceptance?.toFixed(2) ?? "never",
    here.break_even_accept_length === null ? `per-token acceptance, drafts of ${here.break_even_depth}` : `per token; accept length ${here.break_even_accept_length.toFixed(2)}`]);
  if (here.next_token) list.push(["one more token", more(here.next_token), `tokens/s; its survival is ${here.next_token.survival.toFixed(2)}`]);
  if (here.distinct_experts !== null) list.push(["experts read", whole(here.distinct_experts), `of ${here.experts} per layer, busiest GPU`]);
  list.push(["bottleneck", ...bottleneck(here)]);
  return list;
}

// At a rate that both sides serve, they cost the same.
function saving({ drafting, plain }, { service }) {
  if (dollars(drafting) === dollars(plain)) return service ? "same cost at this load" : "same cost without";
  return drafting < plain ? `saves ${dollars(plain - drafting)} of ${dollars(plain)}` : `${dollars(drafting - plain)} more than without`;
}

// Dollars per million output tokens, of the service or of the row.
export function costs(plan, here) {
  if (here.cost_per_million_tokens === undefined || (!here.fits && !plan.service)) return null; // nothing is served, or saved
  if (!plan.service) return { drafting: here.cost_per_million_tokens, plain: here.no_spec_cost_per_million_tokens };
  const price = here.cost_per_million_tokens / here.gpu_hours_per_million_tokens;
  const of = (side) => (price * plan.gpus * 1e6) / 3600 / side.tokens_per_second;
  return { drafting: of(plan.service.speculating), plain: of(plan.service.plain) };
}

const NAMES = { tpot: "TPOT", ttft: "TTFT" };
// At a rate both sides serve the same requests: their times are compared.
export const gainTerm = (plan) => (plan.service && plan.service.qps !== null ? "speed-up at a rate" : "speed-up");

function showTiles(plan, here) {
  byId("numbers").replaceChildren(...tiles(plan, here).map(([name, value, ...small]) =>
    element("div", { "data-tile": name }, element("dt", {}, term(name === "speed-up" ? gainTerm(plan) : name, NAMES[name] ?? name)), element("dd", {}, String(value), ...small.filter(Boolean).map((text) => element("small", {}, text))))));
}

function showFlags(plan, { says, flags, why, canCopy }) {
  const service = plan.service && says === "no" && canCopy;
  byId("flags-title").textContent = service ? "Flags evaluated: leave them out for this load" : "Flags";
  byId("flags").textContent = flags;
  byId("flags").hidden = !canCopy;
  byId("no-flags").textContent = why;
  byId("no-flags").hidden = canCopy;
  byId("copy").disabled = !canCopy;
  const what = plan.config_file ? "Copy command" : "Copy flags";
  byId("copy").textContent = service ? `${what} anyway` : what;
  const notes = [...(plan.config_needs ? [`For ${plan.config_needs}`] : []), ...(canCopy ? plan.config_notes : []), ...plan.warnings];
  byId("notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
}

function showCommands(plan, here, says) {
  const check = here.check ?? plan.check;
  byId("serve-part").hidden = !plan.serve || !check || says === "unsupported";
  if (byId("serve-part").hidden) return;
  const notes = [...plan.serve.notes, ...(check.note ? [check.note] : [])];
  byId("serve").textContent = commandOf(plan.serve);
  byId("check").textContent = check.command;
  const ratio = `${times(check.ratio)} (${check.ratio_low.toFixed(2)} to ${check.ratio_high.toFixed(2)})`;
  byId("expected").textContent = plan.config === "" ? `Expected without speculation: ${check.metric} ${check.predicted_without_speculation.toFixed(2)}. ${notes.join(" ")}`
    : `Expected at ${loadOf(plan, here)}: ${check.metric} ${check.predicted.toFixed(2)}, and ${check.predicted_without_speculation.toFixed(2)} on a server without the speculation flags, a ratio of ${ratio}. Use your own prompts where you can: acceptance depends on the text. ${notes.join(" ")}`;
}

const COLUMNS = [
  ["batch", (row) => whole(row.batch)], ["draft", (row) => row.depth], ["speed-up", (row) => times(row.speedup)],
  ["80% range", range], ["better", better],
  ["tokens/s", (row) => whole(row.goodput_tokens_per_second)], ["plain", (row) => whole(row.no_spec_tokens_per_second)],
  ["ms/token", (row) => milliseconds(row.tpot_seconds)], ["one more token", (row, { next_token_by_row: next }) => more(next.find(({ batch }) => batch === row.batch))],
  ["break-even", (row) => row.break_even_acceptance?.toFixed(2) ?? "never"],
  ["experts read", (row) => (row.distinct_experts === null ? "–" : whole(row.distinct_experts))],
  ["$/M tokens", (row) => dollars(row.cost_per_million_tokens)], ["plain $/M", (row) => dollars(row.no_spec_cost_per_million_tokens)], ["bottleneck", (row) => bound(row), "text"],
];

function showRows(plan, here) {
  const columns = COLUMNS.filter(([name]) => (!name.includes("$/M") || here.cost_per_million_tokens !== undefined)
    && (name !== "experts read" || here.distinct_experts !== null) && (name !== "one more token" || here.next_token_by_row) && (name !== "better" || plan.rows.some(better)));
  const head = element("tr", {}, ...columns.map(([name, , kind]) => element("th", { scope: "col", class: kind ?? "" }, term(name))));
  const body = plan.rows.map((row) => element("tr", { class: `${row.fits ? "" : "dim"}${row.batch === here.batch ? " here" : ""}`, "data-batch": row.batch },
    ...columns.map(([name, cell, kind]) => element("td", { class: kind ?? "" }, `${cell(row, here)}${name === "batch" && !row.fits ? " (does not fit)" : ""}`))));
  byId("rows").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}
