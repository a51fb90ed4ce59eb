// The scenario as a command line and as Python. Pure: a state, and the plan that was shown for it.

import { DEFAULTS, FIELDS } from "./fields.js";
import { modeOf } from "./state.js";

const PAGE_ONLY = ["model", "gpu", "layer"];
const REQUESTS = ["concurrency", "qps", "isl", "osl", "range_ratio"];
const NAMES = { batch: "at_batch" }; // the batch that the answer is about
const LENGTHS = ["isl", "osl", "range_ratio"];

// Options that differ from the defaults, as `specmargin plan` takes them.
function options(state) {
  const mode = modeOf(state);
  const taken = (name) => {
    if (PAGE_ONLY.includes(name)) return false;
    if (name === "context" || name === "batch") return mode === "batch";
    return !REQUESTS.includes(name) || name === mode || (mode !== "batch" && LENGTHS.includes(name));
  };
  const needed = (name) => name === "batch" || name === "isl" || name === "osl";
  return FIELDS.filter(taken)
    .map((name) => [name, state[name] ?? ""])
    .filter(([name, value]) => value !== "" && (value !== DEFAULTS[name] || needed(name)))
    .map(([name, value]) => [NAMES[name] ?? name, value.startsWith("upload:") ? `<your ${name} file>` : value]);
}

const modelOf = (state) => (state.model.startsWith("upload:") ? "<your config.json>" : state.model);
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

export function commandLine(state) {
  const words = options(state).map(([name, value]) => `--${name.replaceAll("_", "-")} ${quoted(value)}`);
  return ["specmargin plan", quoted(modelOf(state)), `--gpu ${quoted(state.gpu)}`, ...words].join(" ");
}

export function python(state) {
  const value = (text) => (/^-?\d+(\.\d+)?$/.test(text) ? text : JSON.stringify(text));
  const texts = ["acceptance"]; // a number that is a text there: "0.8"
  const given = options(state).map(([name, text]) => `${name}=${texts.includes(name) ? JSON.stringify(text) : value(text)}`);
  const all = [JSON.stringify(modelOf(state)), `gpu=${JSON.stringify(state.gpu)}`, ...given].join(", ");
  return `import specmargin\n\nplan = specmargin.plan(${all})\nprint(plan.verdict)\n`;
}
