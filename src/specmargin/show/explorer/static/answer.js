// The answer in short, from the JSON of a plan: one line with its range, the strip, three bullets. No DOM, no requests.

const times = (value) => `${value.toFixed(2)}×`;
const whole = (value) => Math.round(value).toLocaleString("en");
const ms = (seconds) => `${(seconds * 1e3).toFixed(seconds < 0.0995 ? 1 : 0)} ms`;

// `answer`: { plan, here }. `state`: fields of the scenario as text.
export function summary({ plan, here }, state = {}) {
  const gain = plan.service ?? here;
  const unsupported = plan.config_supported ? null : plan.config_notes[0] ?? "no engine runs this drafter";
  const said = verdict(plan, here, gain, unsupported);
  return {
    ...said,
    range: ["yes", "below", "uncertain"].includes(said.says) && gain.speedup_low !== gain.speedup_high ? [gain.speedup_low, gain.speedup_high] : null,
    strip: strip(plan, here),
    bullets: [memory(plan), limit(plan, here, state), change(plan, here)],
    canCopy: plan.config !== "",
    flags: [plan.config, plan.config_file].filter(Boolean).join("\n"),
    why: plan.config === "" ? reason(plan, unsupported) : "",
  };
}

const drafts = (plan) => plan.schedule.some(([, , depth]) => depth > 0);

export function loadOf(plan, here) {
  const { service } = plan;
  if (!service) return `batch ${whole(here.batch)}`;
  return service.concurrency === null ? `${service.qps} requests/s` : `${whole(service.concurrency)} concurrent requests`;
}

function verdict(plan, here, gain, unsupported) {
  const at = `at ${loadOf(plan, here)}`;
  if (unsupported) {
    const subject = plan.drafter === "free" ? "Free drafts are an assumption, not a drafter: they" : `No engine runs ${plan.drafter} yet: it`;
    return { says: "unsupported", line: `${subject} would give ${times(gain.speedup)} ${at}` };
  }
  if (!here.fits && !plan.service) {
    return { says: "too-large", line: `Batch ${whole(here.batch)} does not fit: ${count(plan.largest_batch)} with these flags` };
  }
  if (plan.config === "") return { says: "no", line: `No: leave speculation off ${at}` };
  if (plan.service) {
    if (gain.speedup > 1) return yes(gain, at);
    return { says: "no", line: `No: ${times(gain.speedup)} ${at}` };
  }
  if (here.depth === 0) return { says: "off", line: `Not ${at}: the flags stop drafting there (${times(here.speedup)})` };
  return here.speedup > 1 ? yes(gain, at, plan) : { says: "no", line: `No: ${times(gain.speedup)} ${at}` };
}

// A gain whose range holds a loss too is uncertain; one that larger batches lose, or that lowers peak throughput, is a yes up to there.
function yes(gain, at, plan) {
  const range = `${gain.speedup_low.toFixed(2)} to ${gain.speedup_high.toFixed(2)}`;
  if (gain.speedup_low <= 1) return { says: "uncertain", line: `Uncertain: ${range}× ${at}, best estimate ${times(gain.speedup)}` };
  if (plan?.advice === "speculate-up-to-batch") return { says: "below", line: `Only up to batch ${whole(plan.pays_at_batches.at(-1)[1])}: ${times(gain.speedup)} ${at}, ${range}` };
  return { says: "yes", line: `Yes: ${times(gain.speedup)} ${at}, ${range}` };
}

const count = (sequences) => (sequences === 1 ? "1 sequence fits" : `${whole(sequences)} sequences fit`);

function reason(plan, unsupported) {
  if (unsupported) return `${unsupported[0].toUpperCase()}${unsupported.slice(1)}.`;
  return "Nothing to configure: leave speculation disabled.";
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
  const [drafting, plain] = [plan.largest_batch, plan.no_spec_largest_batch];
  if (drafting >= plain || !drafts(plan)) return { topic: "memory", text: `${count(plain)} in memory at this context.` };
  const peak = plan.no_spec_peak_tokens_per_second > plan.peak_tokens_per_second
    ? `; peak throughput is higher without speculation (${whole(plan.no_spec_peak_tokens_per_second)} against ${whole(plan.peak_tokens_per_second)} tokens/s)` : "";
  return { topic: "memory", text: `With drafts ${count(drafting)} in memory instead of ${whole(plain)}${peak}.` };
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
  else parts.push(plan.pays_at_batches.length ? `${plan.service ? "decode steps gain" : "pays"} at batch ${spans(plan.pays_at_batches)}` : "pays at no batch");
  if (plan.loses_at_batches.length) parts.push(`loses at batch ${spans(plan.loses_at_batches)}`);
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

function change(plan, here) {
  const first = here.survival[0].toFixed(2);
  const parts = [];
  if (here.depth === 0) {
    parts.push(plan.switch_acceptance === null ? "Not even perfect drafts would pay at the smallest batch"
      : `Some depth pays at batch ${plan.rows[0].batch} above a per-token acceptance of ${plan.switch_acceptance.toFixed(2)} (now ${first} for the first token)`);
  } else if (here.break_even_acceptance === null) parts.push(`Depth ${here.depth} does not break even at batch ${whole(here.batch)}, however good the drafts`);
  else parts.push(`Depth ${here.depth} breaks even at a per-token acceptance of ${here.break_even_acceptance.toFixed(2)} (now ${first} for the first token)`);
  if (plan.stops_at_context !== null) parts.push(`beyond a context of about ${whole(plan.stops_at_context)} tokens these flags do not pay at batch ${plan.rows[0].batch}`);
  if (here.better_depth !== null && here.depth > 0) {
    parts.push(here.better_depth ? `depth ${here.better_depth} alone would reach ${times(here.better_speedup)} here` : `no speculation would be faster here (${times(here.better_speedup)})`);
  }
  return { topic: "change", text: `${parts.join("; ")}.` };
}
