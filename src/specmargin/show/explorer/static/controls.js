// The form: filled from the catalog, shows a state, and reports changes.

import { PRICES } from "./answer.js";
import { byId, COUNTS, element, enginesOf, fill, gpuGroups, modelGroups, sizesOf } from "./dom.js";
import { DEFAULTS } from "./fields.js";
import { uploaded } from "./files.js";
import * as loads from "./loads.js";
import { isAnyDrafters, ofOtherModel } from "./state.js";

const form = byId("controls");
const named = (name) => form.elements[name];
const plain = (list) => list.map((name) => [name, name]);
const TYPED = ["gpu_hour_price", "tpot_slo", "concurrency", "qps", "isl", "osl", "range_ratio", "memory_utilization"];
const CURVE = /^[\d.]+(,\s*[\d.]+)+$/;
const LENGTH = /^length:([\d.]+)@(\d+)$/;
let typing = null; // "typed" or "length": chosen, but nothing typed yet

export function show(state, catalog, markedRow) {
  const files = (kind) => uploaded(kind).map((file) => [`upload:${file.id}`, `${file.name}: ${file.summary}`]);
  const one = (options) => [["", options]];
  const known = state.model.startsWith("upload:") || catalog.models.some(({ name }) => name === state.model);
  fill(named("model"), [...group("Dropped", files("config")), ...group("As given", known ? [] : [[state.model, state.model]]), ...modelGroups(catalog)], state.model);
  const gpus = gpuGroups(catalog), listed = gpus.some(([, options]) => options.some(([name]) => name === state.gpu));
  fill(named("gpu"), listed ? gpus : [...gpus, ["As in the link", [[state.gpu, state.gpu]]]], state.gpu); // an alias, such as h100-sxm
  byId("sizes").textContent = sizesOf(catalog, state);
  fill(named("gpus"), one(COUNTS.some(([n]) => n === state.gpus) ? COUNTS : [...COUNTS, [state.gpus, state.gpus]]), state.gpus);
  const layouts = { tp: "tensor parallel", ep: "expert parallel", "dp-ep": "data-parallel attention, expert parallel" };
  fill(named("parallel"), one(catalog.parallel.map((name) => [name, layouts[name] ?? name])), state.parallel);
  named("parallel").closest("label").hidden = state.gpus === "1" || hiddenField(catalog, "parallel");
  const engines = enginesOf(catalog, state.gpu);
  fill(named("engine"), one(engines.map((e) => [e.name, e.title])), state.engine || engines[0]?.name);
  fill(named("prices"), one([["", "most accurate available"], ...catalog.prices.map((name) => [name, PRICES[name] ?? name])]), state.prices ?? "");
  fill(named("drafter"), one(drafters(catalog, markedRow, state.drafter)), state.drafter ?? "");
  for (const name of ["weights", "kv_cache"]) {
    fill(named(name), one([["", "default"], ...withValue(plain(catalog[name] ?? []), state[name])]), state[name] ?? "");
  }
  named("gpu_hour_price").placeholder = catalog.gpus.find((gpu) => gpu.name === state.gpu)?.gpu_hour?.usd ?? "";
  for (const name of TYPED) if (document.activeElement !== named(name)) named(name).value = state[name] ?? "";
  const count = markedRow?.fixed ? "" : `, at ${state.gpus} GPU${state.gpus === "1" ? "" : "s"}`; // fixed: each at its own number
  byId("all-gpus").textContent = `All GPUs that fit${count}`;
  showAcceptance(state, catalog, markedRow);
  showRouting(state, catalog, markedRow);
  loads.show(state, markedRow);
  named("depth").value = state.depth;
  byId("depth-value").textContent = state.depth;
  limit(catalog);
}

// By what they are for this model: its own head, a published one by name, or "an EAGLE-3 head (you need one)".
function drafters(catalog, markedRow, chosen) {
  const titles = markedRow?.drafter_titles ?? {}, named = (kind) => (titles[kind] && titles[kind] !== kind ? `${kind}: ${titles[kind]}` : kind);
  const first = titles[""] ? `default: ${titles[""]}` : "default";
  return [["", first], ...withValue(catalog.drafters.map((kind) => [kind, named(kind)]), chosen)];
}

const group = (label, options) => (options.length ? [[label, options]] : []);
const withValue = (options, value) => (value && !options.some(([name]) => name === value) ? [...options, [value, value]] : options);
const hiddenField = ({ can }, field) => Boolean(can?.fields) && !can.fields.includes(field);

// Controls outside of what the provider can answer are gone.
function limit(catalog) {
  for (const node of document.querySelectorAll("[data-field]")) if (hiddenField(catalog, node.dataset.field)) node.hidden = true;
  for (const node of document.querySelectorAll("[data-needs]")) node.hidden = !catalog.can?.[node.dataset.needs];
  if (hiddenField(catalog, "concurrency")) byId("preset").closest("label").hidden = true;
  for (const part of form.querySelectorAll("fieldset, details")) {
    if (!part.dataset.needs && ![...part.querySelectorAll("label")].some((label) => !label.hidden)) part.hidden = true;
  }
}

function withCategories(kind) {
  return uploaded(kind).flatMap((file) => [[`upload:${file.id}`, `${file.name}: ${file.summary}`],
    ...file.categories.filter((c) => c !== "all").map((c) => [`upload:${file.id}:${c}`, `${file.name}, ${c}`])]);
}

function showAcceptance(state, catalog, markedRow) {
  const value = state.acceptance ?? "";
  const constant = /^[\d.]+$/.test(value);
  const [, mean, at] = LENGTH.exec(value) ?? [];
  if (value) typing = null;
  const way = constant ? "constant" : CURVE.test(value) ? "typed" : mean ? "length" : typing ?? value;
  const bundled = [["", "the drafter's own curve"], ["constant", "the same for every token"], ["typed", "survival by depth …"], ["length", "accept length …"], ...plain(catalog.acceptance)];
  const other = value && !value.startsWith("upload:") ? withValue(bundled, way) : bundled;
  fill(named("acceptance"), [...group("Dropped", withCategories("acceptance")), ["", other]], way);
  byId("alpha").closest("label").hidden = way === "typed" || way === "length";
  byId("typed-row").hidden = way !== "typed";
  byId("length-row").hidden = way !== "length";
  const curve = markedRow?.survival ?? [];
  if (document.activeElement !== byId("typed")) byId("typed").value = CURVE.test(value) ? value.replaceAll(",", ", ") : curve.slice(0, 4).map((s) => s.toFixed(2)).join(", ");
  if (document.activeElement !== byId("length")) byId("length").value = mean ?? (1 + curve.slice(0, 3).reduce((sum, s) => sum + s, 0)).toFixed(2);
  if (document.activeElement !== byId("length-depth")) byId("length-depth").value = at ?? "3";
  const alpha = constant ? Number(value) : curve[0] ?? 0.8;
  byId("alpha").value = alpha;
  byId("alpha-value").textContent = constant ? alpha.toFixed(2) : `${alpha.toFixed(2)} (first token)`;
}

function showRouting(state, catalog, markedRow) {
  const bundled = catalog.routing.map((r) => [r.name, r.categories.map((c) => [c === "all" ? r.name : `${r.name}:${c}`, c])]);
  const first = [["", [["", "the model's own, or scaled to it"], ["uniform", "uniform"]]]];
  fill(named("routing"), [...group("Dropped", withCategories("routing")), ...first, ...bundled], state.routing ?? "");
  const layers = Array.from({ length: markedRow?.moe_layers ?? 0 }, (_, i) => [String(i), `layer ${i}`]);
  fill(named("layer"), [["", [["", "the mean of all"], ...layers]]], state.layer ?? "");
  for (const name of ["routing", "layer"]) named(name).closest("label").hidden = markedRow ? markedRow.experts === null : false;
}

// What a change dropped, in one sentence; "" for nothing.
const DROPPABLE = { acceptance: "acceptance", drafter: "drafter", routing: "routing profile" };
export function dropped(before, after, moved) {
  const gone = Object.keys(DROPPABLE).filter((name) => name !== moved && before[name] && !after[name]);
  const shown = gone.map((name) => `${DROPPABLE[name]} ${before[name].startsWith("upload:") ? "of your file" : before[name]}`);
  return gone.length ? `Back to the default: ${shown.join(", ")} (chosen for the ${moved} before).` : "";
}

// The state with the value of the changed control; null if there is nothing to ask yet.
export function changed(target, state, catalog, service) {
  const { id, name, value } = target;
  const next = { ...state, ...loads.changes(target, state, service) };
  if (id === "alpha") next.acceptance = Number(value).toFixed(2);
  else if (id === "typed") next.acceptance = value.replace(/[\s;]+/g, ",").replace(/,+/g, ",").replace(/^,|,$/g, "");
  else if (id === "length" || id === "length-depth") next.acceptance = `length:${byId("length").value}@${byId("length-depth").value}`;
  else if (name === "acceptance" && value === "constant") next.acceptance = Number(byId("alpha").value).toFixed(2);
  else if (name === "acceptance" && (value === "typed" || value === "length")) {
    typing = value;
    next.acceptance = "";
  } else if (name) next[name] = value || (DEFAULTS[name] ?? "");
  if (name === "acceptance" && value !== "typed" && value !== "length") typing = null;
  if (name === "model") Object.assign(next, ofOtherModel(next));
  if (name === "drafter") next.acceptance = isAnyDrafters(next.acceptance) ? next.acceptance : "";
  if (name === "gpu" && !enginesOf(catalog, value).some((e) => e.name === next.engine)) next.engine = ""; // its default
  if (name === "gpus" && value === "1") next.parallel = "tp";
  return next;
}

export function onChange(take) {
  const slow = ({ target }) => ["number", "text"].includes(target.type); // asked for when the value is complete
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => { if (event.target.type !== "file" && !slow(event)) take(event.target); });
  form.addEventListener("change", (event) => { if (slow(event)) take(event.target); });
}

// `more`: after what is said already.
export function hint(text, more = false) {
  const said = more ? [...byId("model-hint").children] : [];
  byId("model-hint").replaceChildren(...said, ...(text ? [element("span", {}, text)] : []));
}

// On a phone the form is a drawer over the page: closed, nothing in it can be reached; open, nothing outside of it.
export function drawer() {
  const narrow = matchMedia("(max-width: 900px)");
  const outside = [document.querySelector("header"), document.querySelector("main")];
  const isOpen = () => document.body.classList.contains("drawer-open");
  const reachable = () => {
    form.inert = narrow.matches && !isOpen();
    for (const part of outside) part.inert = narrow.matches && isOpen();
  };
  const set = (open) => {
    document.body.classList.toggle("drawer-open", open);
    byId("drawer").setAttribute("aria-expanded", String(open));
    reachable();
    if (open) form.querySelector("select").focus();
    else if (narrow.matches) byId("drawer").focus();
  };
  byId("drawer").addEventListener("click", (event) => { event.stopPropagation(); set(!isOpen()); });
  byId("close").addEventListener("click", () => set(false));
  document.addEventListener("click", ({ target }) => { if (isOpen() && !form.contains(target)) set(false); });
  addEventListener("keydown", ({ key }) => { if (key === "Escape" && isOpen()) set(false); });
  narrow.addEventListener("change", () => set(false));
  reachable();
}
