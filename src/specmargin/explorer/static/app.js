// The explorer: one state, one request for all visible figures, one redraw.

import { ask, oneAtATime, Refused } from "/static/api.js";
import * as cards from "/static/cards.js";
import { load, useThemes } from "/static/charts.js";
import * as controls from "/static/controls.js";
import { byId, complain, element, times, underWay, whole } from "/static/dom.js";
import { DEFAULTS } from "/static/fields.js";
import { onDrop, send } from "/static/files.js";
import { parse, pinnedIn, query, remember } from "/static/state.js";

let state = parse(location.search);
let pinned = pinnedIn(location.search);
let catalog = null;
let markedRow = null;
let lastGood = null; // the state shown, restored when the server refuses a new one
let began = 0;
let lastMoved = null;

const wanted = (slow) => [...cards.cards().values()]
  .filter((card) => card.slow === slow && cards.sees(card.name) && card.stamp !== stamp() && !card.waits)
  .map((card) => card.name);
const stamp = () => JSON.stringify([state, pinned, document.documentElement.dataset.theme]);

const refresh = oneAtATime(async () => {
  try {
    await round(false);
    await round(true);
  } catch (error) {
    refuse(error);
  }
});

async function round(slow) {
  const names = wanted(slow);
  const now = stamp();
  if (!slow && now !== lastGood?.stamp) cards.askAgain();
  if (!names.length && (slow || now === lastGood?.stamp)) return;
  const figures = { show: names.join(","), have: cards.have() };
  if (slow) names.forEach(cards.fade);
  const answers = Promise.all([state, pinned].map((scenario) => (scenario ? ask("/api/view", query(scenario, figures)) : null)));
  const [current, other] = await (slow ? answers : underWay(answers));
  if (now !== stamp()) return; // the state changed meanwhile; the next round draws it
  for (const answer of [current, other]) if (answer?.refused) throw new Refused(answer.refused, null, answer.gpus);
  markedRow = current.here;
  if (now !== lastGood?.stamp) {
    lastGood = { stamp: now, state: { ...state } };
    complain(null);
    showPlan(current.plan);
    showPinned(other?.plan);
    controls.show(state, catalog, markedRow);
  }
  await load();
  await Promise.all(current.figures.map((figure, i) => {
    const pair = other ? [{ label: nameOf(pinned), figure: other.figures[i] }, { label: nameOf(state), figure }] : [{ figure }];
    cards.cards().get(figure.name).stamp = now;
    return cards.show(figure.name, pair, links(figure.name));
  }));
  if (!slow) measured(current.seconds);
}

function measured(seconds) {
  if (!began) return;
  performance.measure("redraw", { start: began, end: performance.now(), detail: { server: seconds } });
  began = 0;
}

function refuse(error) {
  if (!(error instanceof Refused)) throw error;
  if (error.gpus && lastMoved !== "gpus") { // a larger model: choose as many GPUs as it needs
    controls.hint(`Too large for ${state.gpus} × ${state.gpu}: set to ${error.gpus} of them.`);
    go({ ...state, gpus: String(error.gpus) });
    return;
  }
  complain(error.message);
  if (!lastGood) { byId("sentence").textContent = "Nothing to show for this scenario."; return; }
  state = { ...lastGood.state }; // restore the controls to the state shown
  remember(state, pinned);
  controls.show(state, catalog, markedRow);
}

const nameOf = (one) => [one.model.startsWith("upload:") ? "dropped model" : one.model, one.gpus === "1" ? one.gpu : `${one.gpus} × ${one.gpu}`,
  one.drafter, one.acceptance, one.routing, one.prices].filter(Boolean).join(", ");

function links(name) {
  const theme = document.documentElement.dataset.theme;
  return ["png", "svg", "csv", "json"].map((ending) => element("a",
    { href: `/api/figures/${name}.${ending}?${query(state, { theme })}`, download: `${name}.${ending}`, "aria-label": `${ending.toUpperCase()} of ${name}` },
    ending.toUpperCase()));
}

// --- the verdict ---

const hurdle = (row) => row.hurdle_note ?? row.hurdle.toFixed(2);

// Another depth that is faster by more than the plan's min-gain.
const better = (row) => (row.better_depth === null ? "" : `${row.better_depth || "none"}: ${times(row.better_speedup)}`);

const range = (row) => `${row.speedup_low.toFixed(2)} to ${times(row.speedup_high)}`;

function showPlan(plan) {
  byId("sentence").textContent = plan.verdict;
  const sure = plan.rows.filter((row) => row.batch === markedRow.batch).map(range)[0]; // batches between rows have none
  const facts = [
    [`speed-up at batch ${markedRow.batch}`, times(markedRow.speedup),
      markedRow.fits ? sure && `${sure}, 80% range` : "does not fit in memory"],
    ["draft", markedRow.depth || "off", better(markedRow) ? `better: ${better(markedRow)}` : `of ${markedRow.drafter}`],
    ["tokens/s", whole(markedRow.goodput_tokens_per_second), `${whole(markedRow.no_spec_tokens_per_second)} without`],
    ["ms/token", (markedRow.tpot_seconds * 1e3).toFixed(2), null],
    ["hurdle", hurdle(markedRow), "survival needed by one more"],
    ["break-even", markedRow.break_even_acceptance === null ? "never" : markedRow.break_even_acceptance.toFixed(2),
      markedRow.break_even_accept_length === null ? "per-token acceptance" : `per token; accept length ${markedRow.break_even_accept_length.toFixed(2)}`],
    ["experts read", markedRow.distinct_experts === null ? "dense" : whole(markedRow.distinct_experts), markedRow.experts && `of ${markedRow.experts} per layer, busiest GPU`],
    ["bound by", markedRow.bound_by.split(":")[0], markedRow.bound_by.split(": ")[1]],
  ];
  byId("numbers").replaceChildren(...facts.map(([name, value, small]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value), small ? element("small", {}, small) : null))));
  byId("flags").textContent = [plan.config, plan.config_file].filter(Boolean).join("\n") || "Nothing to configure: leave speculation disabled.";
  byId("notes").replaceChildren(...[...(plan.config_needs ? [`for ${plan.config_needs}`] : []), ...plan.config_notes, ...plan.warnings].map((note) => element("li", {}, note)));
  byId("sources").replaceChildren(...Object.entries(plan.sources).map(([name, source]) => element("li", {}, element("b", {}, `${name}: `), source)));
  byId("json").href = `/api/plan?${query(state)}`;
  byId("report").href = `/api/report?${query(state)}`;
  byId("to-story").href = `/story?${query(state)}`;
  showRows(plan.rows);
}

const COLUMNS = [
  ["batch", (row) => whole(row.batch)], ["draft", (row) => row.depth], ["speed-up", (row) => times(row.speedup)],
  ["80% range", range], ["better", better],
  ["tokens/s", (row) => whole(row.goodput_tokens_per_second)], ["plain", (row) => whole(row.no_spec_tokens_per_second)],
  ["ms/token", (row) => (row.tpot_seconds * 1e3).toFixed(2)], ["hurdle", hurdle],
  ["break-even", (row) => row.break_even_acceptance?.toFixed(2) ?? "never"],
  ["experts/GPU", (row) => (row.distinct_experts === null ? "–" : whole(row.distinct_experts))], ["bound by", (row) => row.bound_by, "text"],
];

function showRows(rows) {
  const head = element("tr", {}, ...COLUMNS.map(([name, , kind]) => element("th", { scope: "col", class: kind ?? "" }, name)));
  const body = rows.map((row) => element("tr", { class: row.fits ? "" : "dim" },
    ...COLUMNS.map(([, cell, kind]) => element("td", { class: kind ?? "" }, String(cell(row))))));
  byId("rows").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function showPinned(plan) {
  document.body.classList.toggle("compare", Boolean(plan));
  byId("pinned").hidden = !plan;
  byId("pin").setAttribute("aria-pressed", String(Boolean(plan)));
  if (!plan) return;
  byId("pinned-name").textContent = nameOf(pinned);
  byId("pinned-sentence").textContent = plan.verdict;
}

// --- user actions ---

function go(next, nextPinned = pinned) {
  began = performance.now();
  state = next;
  pinned = nextPinned;
  remember(state, pinned);
  return refresh();
}

async function take(files) {
  try {
    complain(null);
    const fields = { config: "model", acceptance: "acceptance", routing: "routing" };
    const uploads = await send(files);
    const next = { ...state };
    for (const file of uploads) next[fields[file.kind]] = `upload:${file.id}`;
    if (uploads.some((file) => file.kind === "config")) Object.assign(next, { drafter: "", layer: "" });
    controls.hint(uploads.map((file) => file.summary).join("; "));
    await go(next);
  } catch (error) {
    refuse(error);
  }
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

function wire() {
  controls.onChange((target) => {
    lastMoved = target.name || target.id;
    controls.hint("");
    go(controls.changed(target, state));
  });
  byId("file").addEventListener("change", (event) => take(event.target.files));
  onDrop(byId("drop"), take);
  byId("copy").addEventListener("click", () => copy(byId("flags").textContent, "Flags copied."));
  byId("link").addEventListener("click", () => copy(location.href, "Link copied."));
  byId("pin").addEventListener("click", () => go(state, pinned ? null : { ...state }));
  byId("unpin").addEventListener("click", () => go(state, null));
  byId("swap").addEventListener("click", () => go(pinned, state));
  byId("reset").addEventListener("click", () => go({ ...DEFAULTS }, null));
  document.documentElement.addEventListener("themechange", refresh);
  addEventListener("popstate", () => { state = parse(location.search); pinned = pinnedIn(location.search); refresh(); });
}

async function start() {
  load(); // in the background
  try {
    catalog = await ask("/api/catalog");
  } catch (error) {
    refuse(error);
    return;
  }
  useThemes(catalog.themes);
  controls.show(state, catalog, null);
  wire();
  cards.make(catalog, refresh);
  refresh();
}

start();
