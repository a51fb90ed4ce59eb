// The load: presets, and the three ways to give it.

import { byId, fill } from "./dom.js";
import { DEFAULTS } from "./fields.js";
import { BATCHES, contextOf, modeOf, powerOf } from "./state.js";

const PRESETS = {
  chat: { title: "Chat: 500 in, 300 out, 32 users", concurrency: "32", isl: "500", osl: "300" },
  agent: { title: "Agent: 8k in, 500 out, 16 users", concurrency: "16", isl: "8000", osl: "500" },
  batch: { title: "Batch: 1k in, 1k out, 256 users", concurrency: "256", isl: "1000", osl: "1000" },
  long: { title: "Long: 64k in, 1k out, 4 users", concurrency: "4", isl: "64000", osl: "1000" },
};
const FIRST = { concurrency: "32", qps: "2" }; // when a way to give the load is chosen, and no answer says what can be served
const SHARE = 0.8; // of the rate that the concurrent requests of the last answer reach without speculation

export function show(state, markedRow) {
  const mode = modeOf(state);
  const preset = Object.keys(PRESETS).find((name) => ["concurrency", "isl", "osl"].every((field) => state[field] === PRESETS[name][field]));
  fill(byId("preset"), [["", [["", "none"], ...Object.entries(PRESETS).map(([name, { title }]) => [name, title])]]], preset ?? "");
  byId("mode").value = mode;
  for (const node of document.querySelectorAll("[data-mode]")) {
    node.hidden = node.dataset.mode !== mode && !(node.dataset.mode === "load" && mode !== "batch");
  }
  const size = Number(state.batch) || Number(DEFAULTS.batch);
  byId("batch").value = BATCHES.reduce((best, b, i) => (Math.abs(b - size) < Math.abs(BATCHES[best] - size) ? i : best), 0);
  byId("batch-value").textContent = size.toLocaleString("en");
  byId("batch").setAttribute("aria-valuetext", `${size} sequences`);
  if (markedRow?.max_context) byId("context").max = Math.floor(Math.log2(markedRow.max_context) * 2) / 2;
  if (markedRow?.min_context) byId("context").min = Math.ceil(Math.log2(markedRow.min_context) * 2) / 2;
  byId("context").value = powerOf(state.context);
  const tokens = Number.isFinite(Number(state.context)) ? Number(state.context) : contextOf(powerOf(DEFAULTS.context));
  byId("context-value").textContent = `${tokens.toLocaleString("en")} tokens`;
  byId("context").setAttribute("aria-valuetext", `${tokens} tokens`);
}

// The same load given the other way, so that a rate is one that the engine can serve: `service` is that of the last answer.
function sameLoad(mode, { osl }, service) {
  const plain = service?.plain;
  if (mode === "qps" && service?.concurrency && plain) return String(Number(((SHARE * plain.tokens_per_second) / Number(osl)).toPrecision(2)));
  if (mode === "concurrency" && service?.qps && plain) return String(Math.max(Math.round(plain.sequences), 1));
  return FIRST[mode];
}

// The changes of the state by a control of the load; null for other controls.
export function changes({ id, value }, state, service) {
  if (id === "batch") return { batch: String(BATCHES[Number(value)]) };
  if (id === "context") return { context: String(contextOf(value)) };
  if (id === "mode") return { concurrency: "", qps: "", ...(FIRST[value] ? { [value]: sameLoad(value, state, service) } : {}) };
  if (id !== "preset") return null;
  const { concurrency = "", isl, osl } = PRESETS[value] ?? {};
  return { concurrency, qps: "", ...(isl ? { isl, osl } : {}) };
}
