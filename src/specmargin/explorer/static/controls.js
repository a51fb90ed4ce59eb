// The form: filled from the catalog, shows a state, and reports changes.

import { byId, COUNTS, element, fill, gpuGroups, modelGroups } from "/static/dom.js";
import { uploaded } from "/static/files.js";
import { BATCHES, contextOf, powerOf } from "/static/state.js";

const form = byId("controls");
const named = (name) => form.elements[name];
const plain = (list) => list.map((name) => [name, name]);

export function show(state, catalog, markedRow) {
  const files = (kind) => uploaded(kind).map((file) => [`upload:${file.id}`, `${file.name}: ${file.summary}`]);
  fill(named("model"), [...group("Dropped", files("config")), ...modelGroups(catalog)], state.model);
  fill(named("gpu"), gpuGroups(catalog), state.gpu);
  fill(named("gpus"), [["", COUNTS]], state.gpus);
  fill(named("parallel"), [["", [["tp", "tensor parallel"], ["ep", "expert parallel"], ["dp-ep", "data-parallel attention, expert parallel"]]]], state.parallel);
  named("parallel").closest("label").hidden = state.gpus === "1";
  fill(named("engine"), [["", catalog.engines.map((e) => [e.name, e.title])]], state.engine);
  fill(named("prices"), [["", [["", "most accurate available"], ...plain(catalog.prices)]]], state.prices ?? "");
  fill(named("drafter"), [["", [["", "the model's own"], ...plain(catalog.drafters)]]], state.drafter ?? "");
  showAcceptance(state, catalog, markedRow, files("acceptance"));
  showRouting(state, catalog, markedRow, files("routing"));
  showSliders(state, markedRow);
}

const group = (label, options) => (options.length ? [[label, options]] : []);

function withCategories(kind) {
  return uploaded(kind).flatMap((file) => [[`upload:${file.id}`, `${file.name}: ${file.summary}`],
    ...file.categories.filter((c) => c !== "all").map((c) => [`upload:${file.id}:${c}`, `${file.name}, ${c}`])]);
}

function showAcceptance(state, catalog, markedRow) {
  const value = state.acceptance ?? "";
  const constant = /^[0-9.]+$/.test(value);
  const bundled = [["", "the drafter's own curve"], ["constant", "the same for every token"], ...plain(catalog.acceptance)];
  const other = value && !constant && !catalog.acceptance.includes(value) && !value.startsWith("upload:") ? [[value, value]] : [];
  fill(named("acceptance"), [...group("Dropped", withCategories("acceptance")), ["", [...bundled, ...other]]], constant ? "constant" : value);
  const alpha = constant ? Number(value) : markedRow?.survival[0] ?? 0.8;
  byId("alpha").value = alpha;
  byId("alpha-value").textContent = constant ? alpha.toFixed(2) : `${alpha.toFixed(2)} (first)`;
}

function showRouting(state, catalog, markedRow) {
  const bundled = catalog.routing.map((r) => [r.name, r.categories.map((c) => [c === "all" ? r.name : `${r.name}:${c}`, c])]);
  const first = [["", [["", "the model's own, or scaled to it"], ["uniform", "uniform"]]]];
  fill(named("routing"), [...group("Dropped", withCategories("routing")), ...first, ...bundled], state.routing ?? "");
  const layers = Array.from({ length: markedRow?.moe_layers ?? 0 }, (_, i) => [String(i), `layer ${i}`]);
  fill(named("layer"), [["", [["", "the mean of all"], ...layers]]], state.layer ?? "");
  for (const name of ["routing", "layer"]) named(name).disabled = markedRow ? markedRow.experts === null : false;
}

function showSliders(state, markedRow) {
  const size = Number(state.batch);
  byId("batch").value = BATCHES.reduce((best, b, i) => (Math.abs(b - size) < Math.abs(BATCHES[best] - size) ? i : best), 0);
  byId("batch-value").textContent = size.toLocaleString("en");
  byId("batch").setAttribute("aria-valuetext", `${size} sequences`);
  if (markedRow?.max_context) byId("context").max = Math.floor(Math.log2(markedRow.max_context) * 2) / 2;
  byId("context").value = powerOf(state.context);
  byId("context-value").textContent = `${Number(state.context).toLocaleString("en")} tokens`;
  byId("context").setAttribute("aria-valuetext", `${state.context} tokens`);
  named("depth").value = state.depth;
  byId("depth-value").textContent = state.depth;
}

// The state with the value of the changed control.
export function changed(target, state) {
  const next = { ...state };
  const { id, name, value } = target;
  if (id === "alpha") next.acceptance = Number(value).toFixed(2);
  else if (id === "batch") next.batch = String(BATCHES[Number(value)]);
  else if (id === "context") next.context = String(contextOf(value));
  else if (name === "acceptance" && value === "constant") next.acceptance = Number(byId("alpha").value).toFixed(2);
  else next[name] = value;
  if (name === "model") Object.assign(next, { drafter: "", routing: "", layer: "" });
  if (name === "drafter") next.acceptance = next.acceptance?.startsWith("upload:") ? next.acceptance : "";
  if (name === "gpus" && value === "1") next.parallel = "tp";
  return next;
}

export function onChange(take) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => { if (event.target.type !== "file") take(event.target); });
}

export function hint(text) { byId("model-hint")?.replaceChildren(element("span", {}, text)); }
