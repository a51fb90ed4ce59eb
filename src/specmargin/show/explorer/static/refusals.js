// What happens when a scenario is refused: the state to show instead, or what would be answered, each one click away.

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

// Another state to try, or null: the scenario is refused. `lastMoved`: the control that was moved, null for a link.
export function recover(error, { state, compared, lastGood, lastMoved }) {
  if (error.gpus && lastMoved && lastMoved !== "gpus") { // a larger model: choose as many GPUs as it needs
    raised = { from: raised?.from ?? state.gpus, to: String(error.gpus) };
    const hint = `Too large for ${state.gpus} × ${state.gpu}: set to ${error.gpus} GPUs.`;
    return { state: { ...state, gpus: String(error.gpus) }, compared, hint };
  }
  if (lastGood) return null;
  if (error.field === "vs") {
    tellNotices([...notices, `The comparison in this link is left out. ${sentence(error.message)}`]);
    return { state, compared: { ...compared, others: [] } };
  }
  const field = error.field ?? (state.concurrency && state.qps ? "qps" : null); // two loads: the first counts
  if (field && state[field] !== undefined && state[field] !== (DEFAULTS[field] ?? "")) {
    const instead = DEFAULTS[field];
    tellNotices([...notices, `Ignored in this link: ${sentence(error.message)} ${instead ? `Using ${instead}.` : "Using the default."}`]);
    return { state: { ...state, [field]: instead ?? "" }, compared };
  }
  return null;
}

// The scenario itself, without an answer. What is below the line belongs to answers.
export function showRefused(subject) {
  document.body.classList.add("refused");
  byId("answer").dataset.says = "refused";
  byId("line").textContent = `No answer for ${subject}`;
}

export function clearRefusal() {
  document.body.classList.remove("refused");
  offer([]);
}

// `fixes`: { text, changes }, of which `take(changes)` answers the scenario, or { command } to run elsewhere.
export function offer(fixes, take) {
  const buttons = fixes.filter(({ changes }) => changes).map(({ text, changes }) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => take(changes));
    return button;
  });
  const commands = fixes.filter(({ command }) => command).map(({ command }) => element("span", {}, "On your machine: ", element("code", {}, command)));
  byId("fixes").hidden = !fixes.length;
  byId("fixes").replaceChildren(...(buttons.length ? [element("span", {}, "What can be answered:")] : []), ...buttons, ...commands);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
