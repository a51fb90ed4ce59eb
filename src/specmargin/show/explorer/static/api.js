// The one provider of answers: this server. The static site ships a file with the same exports.

import { query } from "./state.js";

// `field`: the one that is wrong; `gpus`: as many would do.
export class Refused extends Error {
  constructor(message, field = null, gpus = null) {
    super(message);
    this.field = field;
    this.gpus = gpus;
  }
}

export async function ask(path, text = "", options = {}) {
  let reply;
  try {
    reply = await fetch(text ? `${path}?${text}` : path, options);
  } catch {
    throw new Refused("The server does not answer. Is `specmargin explore` still running?");
  }
  const body = await reply.json().catch(() => ({ error: `The server answered ${reply.status}.` }));
  if (!reply.ok) throw new Refused(body.error, body.field);
  return body;
}

export const catalog = () => ask("api/catalog");

// Sentences about what a link asks for and this provider leaves out: nothing.
export const dropped = async () => [];

// `states`: the scenario of the controls, then those compared with it.
export function answer([state, ...others], { show = [], have = [] } = {}) {
  return ask("api/view", query(state, { show: show.join(","), have: have.join("|"), vs: others.map((one) => query(one)) }));
}

// What a pasted name or Hugging Face id is: { model, summary }.
export const resolve = (text) => ask("api/resolve", new URLSearchParams({ model: text }).toString());

// Changes, { text, changes }, with which a refused scenario can be answered; none where even they are refused.
export const fixes = (state) => ask("api/fixes", query(state)).catch(() => []);

export const alternatives = (state, field) => ask(`api/alternatives/${field}`, query(state));

export function links(state, others = []) {
  const text = query(state);
  const compared = (name) => (name.startsWith("overlay") ? { vs: others.map((one) => query(one)) } : {});
  return {
    json: `api/plan?${text}`,
    report: `api/report?${text}`,
    story: `story?${text}`,
    page: `./?${text}`,
    embed: `embed?${text}`,
    figure: (name, ending, theme) => `api/figures/${name}.${ending}?${query(state, { theme, ...compared(name) })}`,
  };
}

export function upload(kind, file, beside) {
  const parameters = new URLSearchParams({ name: file.name.slice(0, 200) });
  if (kind === "speculator" && beside) parameters.set("beside", beside);
  const headers = { "content-type": "application/octet-stream" };
  return ask(`api/uploads/${kind}`, parameters.toString(), { method: "POST", body: file, headers });
}
