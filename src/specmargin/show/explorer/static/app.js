// The explorer: one state, one request for all visible figures, one redraw.

import * as api from "./api.js";
import * as cards from "./cards.js";
import { load, useThemes } from "./charts.js";
import { commandLine, python } from "./commands.js";
import * as compare from "./compare.js";
import * as controls from "./controls.js";
import { byId, complain, element, oneAtATime, underWay } from "./dom.js";
import { DEFAULTS } from "./fields.js";
import { onDrop, send } from "./files.js";
import * as glossary from "./glossary.js";
import { onPaste, tellPaste } from "./paste.js";
import { frame, question } from "./question.js";
import { clearRefusal, offer, recover, restoreCount, showRefused, tellNotices } from "./refusals.js";
import { comparison, MOST_COMPARED, ofOtherModel, parse, recalled, remember, together } from "./state.js";
import * as verdict from "./verdict.js";

const { Refused } = api;
const embedded = document.body.classList.contains("embed"); // framed: the question and its answer alone
let state = parse(location.search);
let compared = comparison(location.search);
let catalog = null;
let lastGood = null; // the state shown, restored when the server refuses a new one
let began = 0;
let lastMoved = null;
let refused = null; // the stamp of the state shown refused: it is not asked for again
let arrived = true; // by a link or through the history, not by a control
let entry = "replace"; // how the next answer enters the browser's history: see `remember`

const stamp = () => JSON.stringify([state, compared, document.documentElement.dataset.theme]);
const wanted = (slow) => [...cards.cards().values()]
  .filter((card) => card.slow === slow && !card.element.hidden && cards.sees(card.name) && card.stamp !== stamp() && !card.waits)
  .map((card) => card.name);

const refresh = oneAtATime(async () => {
  try {
    await round(false);
    while (await round(true)); // one slow figure at a time, of those still in sight
  } catch (error) {
    await refuse(error);
  }
});

async function round(slow) {
  const now = stamp();
  if (now === refused) return false;
  const isNew = now !== lastGood?.stamp;
  const names = wanted(slow).slice(0, slow ? 1 : undefined);
  if (!slow && isNew) cards.askAgain();
  if (!names.length && (slow || !isNew)) return false;
  if (slow) names.forEach(cards.fade);
  const asked = api.answer(together(state, compared), { show: names, have: cards.have() });
  const reply = await (slow ? asked : underWay(asked));
  if (now !== stamp()) return false; // the state changed meanwhile; the next round draws it
  const [current] = reply.answers;
  if (current.refused) throw new Refused(current.refused, null, current.gpus);
  if (isNew) showAnswers(reply.answers, now);
  if (reply.figures.length) await load();
  await Promise.all(reply.figures.map((figure) => {
    cards.cards().get(figure.name).stamp = now;
    return cards.show(figure, links(figure.name));
  }));
  if (!slow) measured(reply.seconds);
  if (isNew && wanted(false).length) await round(false); // cards that this scenario brought into sight
  return true;
}

function showAnswers(answers, now) {
  const [current] = answers;
  lastGood = { stamp: now, state: { ...state }, compared, here: current.here, service: current.plan.service };
  complain(null);
  clearRefusal();
  refused = null;
  record();
  verdict.show(current, state);
  compare.show(answers, compared, { remove, take: edit });
  controls.show(state, catalog, current.here);
  cards.keep({ absent: current.here.absent ?? [], comparing: answers.length > 1 });
  const { json, report, story } = api.links(state);
  for (const [id, target] of [["json", json], ["report", report], ["to-story", story]]) {
    byId(id).hidden = !target;
    if (target) byId(id).href = target;
  }
}

function measured(seconds) {
  if (!began) return;
  performance.measure("redraw", { start: began, end: performance.now(), detail: { server: seconds } });
  began = 0;
}

async function refuse(error) {
  if (!(error instanceof Refused)) throw error;
  const next = recover(error, { state, compared, lastGood, lastMoved: arrived ? null : lastMoved });
  if (next) {
    if (next.hint) controls.hint(next.hint, true);
    ({ state, compared } = next);
    await refresh();
    return;
  }
  const asked = { ...state };
  complain(error.message);
  if (lastGood && !arrived) {
    ({ state, compared } = lastGood); // restore the controls to the state shown
    state = { ...state };
  } else {
    lastGood = null;
    refused = stamp();
    showRefused(`${state.model} on ${state.gpus === "1" ? "" : `${state.gpus} × `}${state.gpu}`);
    record(entry === "replace"); // a link keeps its address
  }
  if (!catalog) return;
  controls.show(state, catalog, lastGood?.here);
  const now = stamp();
  offer([]);
  const possible = await api.fixes(asked);
  if (now === stamp()) offer(possible, (changes) => go({ ...asked, ...changes }));
}

// The state that is shown enters the browser's history.
function record(kept = false) {
  const asked = question(whole()), { page } = api.links(state);
  byId("question").textContent = asked;
  byId("to-page").href = page;
  document.title = asked;
  if (!embedded) remember(state, compared, entry, kept);
  entry = "replace";
  arrived = false;
}

function links(name) {
  const theme = document.documentElement.dataset.theme;
  const { figure } = api.links(state, together(state, compared).slice(1));
  if (!figure || !catalog.can.files) return [];
  return ["png", "svg", "csv", "json"].map((ending) => element("a",
    { href: figure(name, ending, theme), download: `${name}.${ending}`, "aria-label": `${ending.toUpperCase()} of ${name}` }, ending.toUpperCase()));
}

// --- user actions ---

// Not awaited by its callers: a call while another runs is merged into it. `as`: of `remember`.
function go(next, nextCompared = compared, as = "push") {
  began = performance.now();
  state = next;
  compared = nextCompared;
  entry = as;
  arrived = as === "replace";
  return refresh();
}

const remove = (index) => go(state, { ...compared, others: compared.others.filter((_, i) => i !== index) });

// A compared scenario moves into the controls, and that of the controls into the comparison.
function edit(index) {
  const chosen = together(state, compared)[index + 1];
  go(chosen, { ...compared, others: compared.others.map((one, i) => (i === index ? { ...state } : one)) });
}

function keep(states, names = []) {
  const free = MOST_COMPARED - compared.others.length, left = names.slice(free).join(", ") || states.length - free;
  byId("compare-note").textContent = states.length > free ? `At most ${MOST_COMPARED + 1} scenarios; left out: ${left}.` : "";
  go(state, { ...compared, others: [...compared.others, ...states.slice(0, free)] });
}

async function keepAll(field, changes) {
  try {
    const names = await underWay(api.alternatives(state, field));
    const current = field === "drafter" ? lastGood.here.drafter.split(/[ :]/)[0] : state[field];
    compared = { ...compared, others: [] };
    const others = names.filter((name) => name !== current);
    keep(others.map((name) => ({ ...state, [field]: name, ...changes })), others);
    if (names.length <= 1) byId("compare-note").textContent = "There is no other one.";
  } catch (error) {
    tell(error);
  }
}

async function take(files) {
  try {
    complain(null);
    const fields = { config: "model", acceptance: "acceptance", routing: "routing" };
    const uploads = await send(files);
    const next = { ...state, ...(uploads.some((file) => file.kind === "config") ? ofOtherModel(state) : {}) };
    for (const file of uploads) next[fields[file.kind]] = `upload:${file.id}`;
    controls.hint([uploads.map((file) => file.summary).join("; "), controls.dropped(state, next, "model")].filter(Boolean).join(". "));
    await go(next);
  } catch (error) {
    tell(error);
  }
}

function takeModel({ model, summary }) {
  lastMoved = "model";
  tellNotices([]);
  const next = restoreCount({ ...state, ...ofOtherModel(state), model });
  controls.hint([summary, controls.dropped(state, next, "model")].filter(Boolean).join(". "));
  go(next);
}

// Nothing else changes.
function tell(error) {
  if (!(error instanceof Refused)) throw error;
  complain(error.message);
}

async function copy(text, confirmation) {
  try {
    await navigator.clipboard.writeText(text);
    byId("done").textContent = confirmation;
  } catch {
    byId("done").textContent = "The browser does not allow copying; select the text instead.";
  }
  setTimeout(() => { byId("done").textContent = ""; }, 2500);
}

// With what the provider of answers fixed: the static site has one number of GPUs per model and GPU.
const whole = () => ({ ...state, ...lastGood?.here.fixed });

function startOver() {
  complain(null);
  tellNotices([]);
  controls.hint("");
  go({ ...DEFAULTS }, { others: [], linked: true });
}

function wire() {
  controls.onChange((target) => {
    lastMoved = target.name || target.id;
    tellNotices([]);
    const next = controls.changed(target, state, catalog, lastGood?.service);
    controls.hint(controls.dropped(state, next, lastMoved));
    go(["model", "gpu"].includes(lastMoved) ? restoreCount(next) : next, compared, target.type === "range" ? lastMoved : "push");
    controls.show(state, catalog, lastGood?.here);
  });
  controls.drawer();
  byId("file").addEventListener("change", (event) => take(event.target.files));
  if (catalog.can.uploads) onDrop(byId("drop"), take);
  onPaste(takeModel, (error) => {
    if (!(error instanceof Refused)) throw error;
    tellPaste(error.message, error.command?.(state));
  });
  const said = { flags: "Flags copied.", serve: "Command copied.", check: "Benchmark copied." };
  for (const button of document.querySelectorAll("[data-copies]")) {
    const { copies: from } = button.dataset;
    button.addEventListener("click", () => { if (stamp() === lastGood?.stamp) copy(byId(from).textContent, said[from]); }); // not of the old answer
  }
  byId("link").addEventListener("click", () => copy(location.href, `Link copied.${catalog.can.previews ? "" : " Its preview names the model, not the load: this site has no server."}`));
  byId("embed").addEventListener("click", () => copy(frame(new URL(api.links(state).embed, document.baseURI).href, question(whole())), "Embed copied."));
  byId("copy-command").addEventListener("click", () => copy(commandLine(whole()), "Command line copied."));
  byId("copy-python").addEventListener("click", () => copy(python(whole()), "Python copied."));
  byId("keep").addEventListener("click", () => keep([{ ...state }]));
  byId("all-drafters").addEventListener("click", () => keepAll("drafter", { acceptance: "" }));
  byId("all-gpus").addEventListener("click", () => keepAll("gpu", {}));
  byId("linked").addEventListener("change", ({ target }) => go(state, { linked: target.checked, others: target.checked ? compared.others : together(state, compared).slice(1) }));
  byId("clear").addEventListener("click", () => { byId("compare-note").textContent = ""; go(state, { others: [], linked: true }); });
  byId("reset").addEventListener("click", startOver);
  document.documentElement.addEventListener("themechange", refresh);
  addEventListener("popstate", (event) => {
    tellNotices([]);
    controls.hint("");
    go(...recalled(event.state), "replace");
    controls.show(state, catalog, lastGood?.here);
  });
}

async function start() {
  if (!embedded) load(); // in the background
  try {
    catalog = await api.catalog();
  } catch (error) {
    await refuse(error);
    return;
  }
  useThemes(catalog.themes);
  glossary.install();
  byId("compare").hidden = !catalog.can.compare;
  controls.show(state, catalog, null);
  const dropped = await api.dropped(location.search, state);
  if (dropped.length) tellNotices(dropped);
  wire();
  cards.make(catalog, refresh);
  refresh();
}

start();
