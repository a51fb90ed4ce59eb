// The answer in short, from the JSON of a plan: its first line, the strip, bullets. No DOM, no requests.

const whole = (value) => Math.round(value).toLocaleString("en");
const ms = (seconds) => `${(seconds * 1e3).toFixed(seconds < 0.0995 ? 1 : 0)} ms`;

// How the page marks an answer, by the plan's advice: its colour follows the whole answer, latency and capacity included.
// "up-to": a yes with a limit, which costs nothing else; "only": a gain that is paid for.
const SAYS = {
  "speculate": "yes", "speculate-up-to-batch": "only", "speculate-with-slower-first-token": "only", "misses-target": "only",
  "overloaded": "only", "uncertain": "uncertain", "do-not-speculate": "no", "unsupported": "unsupported", "none-fits": "too-large",
};

// `answer`: { plan, here }. `state`: fields of the scenario as text. The sentences are the verdict of the command line.
export function summary({ plan, here }, state = {}) {
  const unsupported = plan.config_supported ? null : plan.config_notes[0] ?? "no engine runs this drafter";
  const [line, ...lines] = plan.verdict.replaceAll(EXPLAINED, "the benchmark below").split("\n");
  return {
    says: plan.advice === "speculate-up-to-batch" && !FEWER_FIT.test(plan.verdict) ? "up-to" : SAYS[plan.advice], line,
    strip: strip(plan, here),
    bullets: [...lines.map((text) => ({ topic: "verdict", text })), ...borrowed(plan), ...memory(plan), limit(plan, here, state)],
    canCopy: plan.config !== "",
    flags: flagsOf(plan),
    why: plan.config === "" ? reason(plan, unsupported) : "",
  };
}

const EXPLAINED = "the benchmark that --explain prints", FEWER_FIT = /fit without drafts\.|\nFits in memory: /; // `certainty.py`, `verdict.toml`

const drafts = (plan) => plan.schedule.some(([, , depth]) => depth > 0);

// A command that writes the file that a server reads, and then starts it.
export function commandOf({ command, file_name: name, file_text: text }) {
  return name && text ? `cat > ${name} <<'EOF'\n${text.trimEnd()}\nEOF\n${command}` : command;
}

// Where step times come from, by the plan's kind of prices: both kinds of measured ones differ by their error.
export const PRICES = { laws: "laws fitted to measured kernels", tables: "tables of measured kernels" };

// Flags that name a file of their own are shown as the whole command, which writes it.
const flagsOf = (plan) => (plan.config && plan.config_file && plan.serve ? commandOf(plan.serve) : plan.config);

export function loadOf(plan, here) {
  const { service } = plan;
  if (!service) return `batch ${whole(here.batch)}`;
  return service.concurrency === null ? `${service.qps} requests/s` : `concurrency ${whole(service.concurrency)}`;
}

function reason(plan, unsupported) {
  if (unsupported) return `${unsupported[0].toUpperCase()}${unsupported.slice(1)}.`;
  return "Nothing to configure: leave speculation disabled.";
}

// What was not measured with this model, as the command line's last line names it.
function borrowed({ inputs = [], sources }) {
  const taken = inputs.filter(({ origin }) => origin === "borrowed").map(({ name }) => name);
  const from = (name) => sources[name].replace(/^assumed: /, "").replace(/; give --acceptance$|: capture your own$/, "")
    .replace(/^as measured elsewhere \((.*)\)$/, "$1").replaceAll(/ \([^()]*\)/g, "");
  return taken.map((name) => ({ topic: "borrowed", text: `${name[0].toUpperCase()}${name.slice(1)} is borrowed: ${from(name)}.` }));
}

// Ranges of batches as the engine will draft them, up to what fits in memory.
export function strip(plan, here) {
  const supported = plan.config !== "" || drafts(plan);
  const ranges = supported ? plan.schedule : [[1, plan.schedule.at(-1)[1], 0]];
  const fits = supported && drafts(plan) ? plan.largest_batch : plan.no_spec_largest_batch;
  const merged = [];
  for (const [first, last, depth] of ranges) {
    if (merged.at(-1)?.depth === depth) merged.at(-1).last = last;
    else merged.push({ first, last, depth });
  }
  merged.at(-1).last = Math.max(merged.at(-1).last, fits); // the engine keeps its last depth
  return merged.filter(({ first }) => first <= Math.max(fits, 1)).map(({ first, last, depth }) => {
    const end = Math.min(last, Math.max(fits, 1));
    return { first, last: end, depth, here: first <= here.batch && here.batch <= end };
  });
}

function memory(plan) {
  if (FEWER_FIT.test(plan.verdict)) return [];
  const [drafting, plain] = [plan.largest_batch, plan.no_spec_largest_batch].map(whole);
  const text = drafting === plain || !drafts(plan) ? `${plain} sequences` : `${drafting} sequences with drafts, ${plain} without`;
  return [{ topic: "memory", text: `Fits in memory: ${text}.` }];
}

const spans = (ranges) => ranges.slice(0, 3).map(([first, last]) => (first === last ? whole(first) : `${whole(first)} to ${whole(last)}`)).join(" and ") + (ranges.length > 3 ? " …" : "");

// The component that one more position waits for, and what limits it; collectives are their own resource. See `words.py`.
const LIMITS = { bytes: "limited by memory reads", flops: "limited by arithmetic", "fixed time": "a fixed time" };

export function bottleneck({ bound_by: text }) {
  const [component, resource] = text.split(": ");
  return [component, resource === component ? "" : LIMITS[resource] ?? resource];
}

export function bound(row) {
  const [component, limit] = bottleneck(row);
  return limit ? `${component} (${limit})` : component;
}

function limit(plan, here, state) {
  const parts = [];
  if (plan.service?.range_ratio === 0 && outOfStep(plan.service)) {
    parts.push("requests of equal length stay in step without speculation and share their prefills, so varied lengths would favour speculation more");
  }
  if (state.tpot_slo) parts.push(target(plan, here, Number(state.tpot_slo)));
  if (plan.config === "" && !drafts(plan)) parts.push("no depth pays at the batches considered");
  else if (!plan.verdict.includes("\nPays at ")) parts.push(plan.pays_at_batches.length ? `${plan.service ? "decode steps gain" : "pays"} at batch ${spans(plan.pays_at_batches)}` : "pays at no batch");
  if (plan.loses_at_batches.length && !plan.verdict.includes("\nSlower at ")) parts.push(`loses at batch ${spans(plan.loses_at_batches)}`);
  parts.push(`bottleneck ${bound(here)}`);
  const text = parts.join("; ");
  return { topic: "limit", text: `${text[0].toUpperCase()}${text.slice(1)}.` };
}

// Prefill takes a far larger share of the time with speculation: its requests no longer end together.
const outOfStep = ({ plain, speculating }) => speculating.prefill_share > 2 * plain.prefill_share;

function target(plan, here, milliseconds) {
  const [drafting, plain] = plan.service
    ? [plan.service.speculating.tpot_seconds, plan.service.plain.tpot_seconds] : [here.tpot_seconds, here.no_spec_tpot_seconds];
  const met = (seconds) => (seconds * 1e3 <= milliseconds ? "meets" : "misses");
  return `${ms(drafting)} per token ${met(drafting)} the target of ${milliseconds} ms (${ms(plain)} without speculation)`;
}
