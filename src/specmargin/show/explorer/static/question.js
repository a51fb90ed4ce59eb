// The question that a scenario asks, in one sentence: as in `question.py`.

import { modeOf } from "./state.js";

const whole = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: 6 });

export function question(state) {
  const model = state.model.startsWith("upload:") ? "a dropped model" : state.model;
  const place = state.gpus === "1" ? state.gpu : `${state.gpus} × ${state.gpu}`;
  const by = `${state.drafter ? ` with ${state.drafter}` : ""}${state.engine ? ` in ${state.engine}` : ""}`;
  return `Does speculation pay for ${model} on ${place}${by} ${load(state)}?`;
}

function load(state) {
  const mode = modeOf(state);
  if (mode === "batch") return `at batch ${whole(state.batch)}, context ${whole(state.context)}`;
  const rate = mode === "concurrency" ? `${whole(state.concurrency)} concurrent requests` : `${whole(state.qps)} requests per second`;
  return `at ${rate}, ${whole(state.isl)} input and ${whole(state.osl)} output tokens`;
}

// The answer in a page of somebody else's.
export function frame(address, title) {
  const quoted = (text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
  return `<iframe src="${quoted(address)}" title="${quoted(title)}" width="100%" height="520" style="border:0" loading="lazy"></iframe>`;
}
