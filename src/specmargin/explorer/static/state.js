// A scenario is the page's address: every state is a link. Defaults are left out.

import { DEFAULTS, FIELDS } from "/static/fields.js"; // written by the server: every field of a request

export const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024];

export function parse(text) {
  const parameters = new URLSearchParams(text);
  const state = { ...DEFAULTS };
  for (const name of FIELDS) if (parameters.get(name)) state[name] = parameters.get(name);
  return state;
}

export function pinnedIn(text) {
  const pinned = new URLSearchParams(text).get("vs");
  return pinned === null ? null : parse(pinned);
}

export function query(state, more = {}) {
  const out = new URLSearchParams();
  for (const name of FIELDS) {
    const value = state[name];
    if (value !== undefined && value !== "" && value !== DEFAULTS[name]) out.set(name, value);
  }
  for (const [name, value] of Object.entries(more)) out.set(name, value);
  return out.toString();
}

export function remember(state, pinned) {
  const text = query(state, pinned ? { vs: query(pinned) } : {});
  history.replaceState(null, "", text ? `?${text}` : location.pathname);
}

export const contextOf = (power) => Math.round(2 ** Number(power));
export const powerOf = (tokens) => Math.round(Math.log2(Math.max(Number(tokens), 1)) * 2) / 2;
