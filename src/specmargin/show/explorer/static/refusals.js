// What happens when a scenario is refused: the state to show instead, and what the reader is told.

import { byId, element } from "./dom.js";
import { DEFAULTS } from "./fields.js";

let raised = null; // { from, to }: a number of GPUs that the page chose, not the reader
const notices = [];

export function tellNotices(texts) {
  notices.splice(0, notices.length, ...texts);
  byId("notices").hidden = !notices.length;
  byId("notices").replaceChildren(element("ul", {}, ...notices.map((text) => element("li", {}, text))));
}

// The number of GPUs that the page raised for another model is not kept for the next one.
export function restoreCount(state) {
  const own = raised && state.gpus === raised.to ? { ...state, gpus: raised.from } : state;
  raised = null;
  return own.gpus === "1" ? { ...own, parallel: "tp" } : own;
}

// Another state to try, or null: then what was shown stays.
export function recover(error, { state, compared, lastGood, lastMoved }) {
  if (error.gpus && lastMoved !== "gpus") { // a larger model: choose as many GPUs as it needs
    raised = { from: raised?.from ?? state.gpus, to: String(error.gpus) };
    const hint = `Too large for ${state.gpus} × ${state.gpu}: set to ${error.gpus} GPUs.`;
    return { state: { ...state, gpus: String(error.gpus) }, compared, hint };
  }
  if (lastGood) return null;
  if (error.field && state[error.field] !== undefined && state[error.field] !== (DEFAULTS[error.field] ?? "")) {
    const instead = DEFAULTS[error.field];
    tellNotices([...notices, `Ignored in this link: ${sentence(error.message)} ${instead ? `Using ${instead}.` : "Using the default."}`]);
    return { state: { ...state, [error.field]: instead ?? "" }, compared };
  }
  if (compared.others.length) {
    tellNotices([...notices, `The comparison in this link is left out. ${sentence(error.message)}`]);
    return { state, compared: { ...compared, others: [] } };
  }
  const bare = { ...DEFAULTS, model: state.model, gpu: state.gpu, gpus: state.gpus };
  const next = [bare, { ...DEFAULTS }].find((one) => Object.keys({ ...one, ...state }).some((name) => (one[name] ?? "") !== (state[name] ?? "")));
  if (!next) return null;
  const shown = next === bare ? `${bare.model} on ${bare.gpu} with defaults` : "the default scenario";
  tellNotices([...notices, `This link cannot be shown. ${sentence(error.message)} Showing ${shown} instead.`]);
  return { state: next, compared };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
