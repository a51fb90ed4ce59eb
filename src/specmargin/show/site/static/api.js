// The provider of answers for the static site: grids written by `specmargin site` instead of a server.

import { sliceOf } from "./cell.js";
import { commandLine } from "./commands.js";
import { enginesOf } from "./dom.js";
import { header, headerPath, keyOf, refusals, site, table, tablePath } from "./grids.js";
import { overlays } from "./overlays.js";
import { makePlan } from "./plan.js";
import { query } from "./state.js";
import { parseAcceptance, Unreadable } from "./survival.js";

export class Refused extends Error {
  constructor(message, field = null, gpus = null) {
    super(message);
    this.field = field;
    this.gpus = gpus;
  }
}

export async function catalog() { return site.catalog; }

// A file of the site that must be there.
async function present(path, loading) {
  const content = await loading;
  if (content === null) throw new Refused(`${path} is missing: was this site uploaded completely?`);
  return content;
}

// --- cells ---

const names = (list) => (list.length > 1 ? `${list.slice(0, -1).join(", ")} and ${list[list.length - 1]}` : list[0]);

// A model of the site by its name or its own Hugging Face id; undefined for others.
const modelOf = (text) => site.ids[text.toLowerCase()] ?? site.catalog.models.find(({ name }) => name === text.toLowerCase())?.name;

async function cellOf(asked) {
  const { catalog: known } = site, state = { ...asked, model: modelOf(asked.model) };
  if (!state.model) throw new Refused(`This site has no model "${asked.model}".`); // the question itself: another model is no answer to it
  for (const [field, list] of [["gpu", "gpus"], ["engine", "engines"]]) {
    const offered = known[list].map((entry) => entry.name);
    if ((state[field] || field !== "engine") && !offered.includes(state[field])) throw new Refused(`This site has no ${field} "${state[field]}"; it has ${names(offered)}.`, field);
  }
  const key = keyOf(state.gpu, state), { [key]: refused } = await refusals(state.model);
  if (refused) throw new Refused(refused);
  return { ...(await present(headerPath(key), header(key))), key };
}

function number(state, field, low, high, otherwise) {
  const text = state[field] ?? "", value = text === "" ? otherwise : Number(text);
  if (value === null || (Number.isFinite(value) && value >= low && value <= high)) return value;
  throw new Refused(`${field.replaceAll("_", " ")} must be a number from ${low.toLocaleString("en")} to ${high.toLocaleString("en")}.`, field);
}

function settings(cell, state) {
  const kinds = cell.drafters.map((entry) => entry.kind), drafter = state.drafter ? kinds.indexOf(state.drafter) : 0;
  if (drafter < 0) throw new Refused(`This site has no grid for the drafter "${state.drafter}" here; it has ${names(kinds)}.`, "drafter");
  try {
    return {
      drafter, survival: state.acceptance ? parseAcceptance(state.acceptance) : null, given: state.acceptance,
      context: number(state, "context", cell.contexts[0], cell.contexts[cell.contexts.length - 1], 1024),
      depth: number(state, "depth", 1, cell.depth, cell.depth), batch: number(state, "batch", 1, 8192, 16),
      price: number(state, "gpu_hour_price", 0, 1e9, null),
    };
  } catch (error) {
    if (error instanceof Unreadable) throw new Refused(error.message, "acceptance");
    throw error;
  }
}

async function answered(state) {
  try {
    const cell = await cellOf(state), chosen = settings(cell, state);
    const slice = await sliceOf(cell, chosen.context, (tokens) => present(tablePath(cell.key, tokens), table(cell.key, tokens)));
    return makePlan(slice, site, chosen);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { refused: error.message, field: error.field, gpus: error.gpus };
  }
}

// What differs between the states; the model and the GPU of one alone.
const LABELLED = ["model", "gpu", "engine", "drafter", "acceptance", "context", "depth"];
function labels(states, answers) {
  const differing = LABELLED.filter((field) => states.some((state) => (state[field] ?? "") !== (states[0][field] ?? "")));
  const shown = states.length > 1 && differing.length ? differing : ["model", "gpu"];
  return states.map((state, i) => shown.map((field) => state[field] || answers[i].plan?.[field] || `own ${field}`).join(", "));
}

export async function answer(states, { show = [], have = [] } = {}) {
  const began = performance.now(), made = await Promise.all(states.map(answered)), named = labels(states, made);
  const answers = made.map((one, i) => ({ label: named[i], ...one }));
  if (answers[0].field) throw new Refused(answers[0].refused, answers[0].field); // of a link: the page uses the default instead
  const sides = answers.filter((entry) => entry.plan);
  const drawn = sides.length ? overlays(sides, site) : [];
  const figures = show.map((name) => drawn.find((figure) => figure.name === name) ?? { name, reason: "not on this site" });
  setTimeout(tellFirst, 50);
  return {
    answers, seconds: (performance.now() - began) / 1e3,
    figures: figures.map((figure) => ({ ...figure, structure: have.includes(figure.key) ? null : figure.structure })),
  };
}

// What a link asks for and the grids do not vary: their answer is for something else, so it is said.
export async function dropped(text, state) {
  const asked = new URLSearchParams(text), lost = site.dropped.filter((name) => asked.get(name));
  const gpus = await cellOf(state).then(({ plan }) => String(plan.gpus), () => null); // a cell that is not there is refused later
  if (gpus && asked.get("gpus") && asked.get("gpus") !== gpus) lost.push("gpus");
  if (!lost.length) return [];
  const given = names(lost.map((name) => `${name}=${asked.get(name).slice(0, 40)}`));
  return [`This site does not vary ${names(lost)}: ${given} of this link ${lost.length > 1 ? "are" : "is"} left out${lost.includes("gpus") ? `, and the answer is for ${gpus}` : ""}. specmargin explore on your machine has ${lost.length > 1 ? "them" : "it"}.`];
}

// What of this site is nearest to a scenario that it lacks: other GPUs and engines of the model, or its models.
export async function fixes(state) {
  const { catalog: known } = site, model = modelOf(state.model), run = { command: commandLine(state) };
  if (!model) return [...known.models.map(({ name }) => ({ text: name, changes: { model: name } })), run];
  const refused = await refusals(model);
  const has = (changes) => !refused[keyOf(changes.gpu ?? state.gpu, { ...state, model, ...changes })];
  const gpus = known.gpus.map(({ name, title }) => ({ text: title.replace(/^NVIDIA /, ""), changes: { gpu: name } }));
  const engines = enginesOf(known, state.gpu).map(({ name, title }) => ({ text: title, changes: { engine: name } }));
  return [...[...gpus, ...engines].filter(({ changes }) => has(changes)), run];
}

// What a pasted name or Hugging Face id is; other models than the site's are for the command line.
export async function resolve(text) {
  const model = modelOf(text);
  if (model) return { model, summary: "" };
  throw elsewhere(`This site has no model "${text.slice(0, 100)}". On your machine:`, text);
}

const elsewhere = (message, model) => Object.assign(new Refused(message), { command: (state) => commandLine({ ...state, model }) });

export async function alternatives(state, field) {
  if (field === "drafter") return (await cellOf(state)).drafters.map((entry) => entry.kind);
  const refused = await refusals(state.model);
  return site.catalog.gpus.map((entry) => entry.name).filter((gpu) => !refused[keyOf(gpu, state)]);
}

// A framed page has no folder that says its model.
export const links = (state) => {
  const text = new URLSearchParams({ model: state.model, ...Object.fromEntries(new URLSearchParams(query(state))) });
  return { json: null, report: null, story: "story/", page: `${encodeURIComponent(state.model)}/?${text}`, embed: `embed/?${text}`, figure: null };
};

let tellFirst;
export const firstAnswer = new Promise((resolve) => { tellFirst = resolve; }); // before it, nothing heavy is loaded

export async function upload(kind) {
  if (kind === "config") throw elsewhere("This site has no server that could read it. Save it as config.json, then on your machine:", "config.json");
  throw new Refused("Files cannot be uploaded here: run `specmargin explore` on your machine.");
}
