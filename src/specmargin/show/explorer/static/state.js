// A scenario is the page's address: every state is a link. Defaults are left out.

import { DEFAULTS, FIELDS } from "./fields.js"; // written by the server: every field of a request

export const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024];
export const LOAD = ["batch", "context", "concurrency", "qps", "isl", "osl", "range_ratio"]; // moves together in a comparison
export const MOST_COMPARED = 11;

export function parse(text) {
  const parameters = new URLSearchParams(text);
  const state = { ...DEFAULTS };
  for (const name of FIELDS) if (parameters.get(name)) state[name] = parameters.get(name);
  return state;
}

// What else the address has: the compared scenarios, and whether they share the load.
export function comparison(text) {
  const parameters = new URLSearchParams(text);
  return { others: parameters.getAll("vs").slice(0, MOST_COMPARED).map(parse), linked: parameters.get("linked") !== "0" };
}

// Every scenario of a comparison, the current one first.
export function together(state, { others, linked }) {
  const load = Object.fromEntries(LOAD.map((name) => [name, state[name]]));
  return [state, ...others.map((one) => (linked ? { ...one, ...load } : one))];
}

export function query(state, more = {}) {
  const out = new URLSearchParams();
  for (const name of FIELDS) {
    const value = state[name];
    if (value !== undefined && value !== "" && value !== DEFAULTS[name]) out.set(name, value);
  }
  for (const [name, value] of Object.entries(more)) {
    if (Array.isArray(value)) value.forEach((one) => out.append(name, one));
    else if (value !== "") out.set(name, value);
  }
  return out.toString();
}

export function address(state, { others, linked }) {
  const text = query(state, { vs: others.map((one) => query(one)), linked: linked || !others.length ? "" : "0" });
  return text ? `?${text}` : location.pathname;
}

// `as`: "replace", "push", or the name of a slider, whose moves in a row are one entry of the browser's history.
// `kept`: the address stays as it is, such as that of a link that cannot be answered.
export function remember(state, compared = { others: [], linked: true }, as = "replace", kept = false) {
  const known = { state, compared, moved: as };
  const replaces = as === "replace" || (as !== "push" && history.state?.moved === as);
  if (kept) history.replaceState(known, "");
  else if (replaces) history.replaceState(known, "", address(state, compared));
  else history.pushState(known, "", address(state, compared));
}

// The scenario and the comparison of an entry of the history; of the address for an entry that the page did not make.
export function recalled(known) {
  if (known?.state) return [{ ...known.state }, known.compared];
  return [parse(location.search), comparison(location.search)];
}

export const modeOf = (state) => (state.concurrency ? "concurrency" : state.qps ? "qps" : "batch");
export const contextOf = (power) => Math.round(2 ** Number(power));
export const powerOf = (tokens) => Math.round(Math.log2(Math.max(Number(tokens) || 1, 1)) * 2) / 2;

// A number, a curve, a length or the reader's own file may be any drafter's acceptance; a bundled curve is one drafter's.
export const isAnyDrafters = (acceptance = "") => /^([\d.]|length:|accepted:|upload:)/.test(acceptance);

// What belongs to one model goes with it: its drafter and routing, and measured acceptance, but not what the reader typed.
export function ofOtherModel({ acceptance = "" }) {
  return { drafter: "", routing: "", layer: "", acceptance: isAnyDrafters(acceptance) && !acceptance.startsWith("upload:") ? acceptance : "" };
}
