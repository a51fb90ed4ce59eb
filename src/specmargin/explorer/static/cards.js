// Cards of figures: created once from the catalog, and drawn when visible.

import { draw } from "/static/charts.js";
import { byId, element } from "/static/dom.js";

const CARDS = new Map(); // name -> card
const structures = new Map(); // key -> structure: sent once
const inSight = new Set();

export const have = () => [...structures.keys()].join("|");
export const sees = (name) => inSight.has(name);
export const cards = () => CARDS;

export function make(catalog, onSight) {
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inSight.add(target.dataset.name);
      else inSight.delete(target.dataset.name);
    }
    onSight();
  }, { rootMargin: "120px" });
  const sections = Map.groupBy(catalog.figures, (figure) => figure.section);
  for (const [title, figures] of sections) {
    const elements = figures.map((figure) => card(figure, onSight));
    elements.forEach((node) => watcher.observe(node));
    byId("figures").append(element("h2", { class: "section" }, title), element("div", { class: "grid" }, ...elements));
  }
}

// Figures that take long are drawn only on request, and again only on a new request.
export function askAgain() {
  for (const one of CARDS.values()) if (one.wait) one.offer();
}

function card({ name, title, slow, wait }, onSight) {
  const id = `figure-${name}`;
  const parts = {
    title: element("h3", { id: `${id}-title` }, title),
    takeaway: element("p", { class: "takeaway" }),
    panes: element("div", { class: "panes" }),
    source: element("p"),
    links: element("p"),
    numbers: element("details", { hidden: true }, element("summary", {}, "Numbers")),
  };
  if (slow) parts.panes.append(element("div", { class: "pane" }, element("p", { class: "nothing" }, "Computing …")));
  const node = element("figure", { class: "figure", id, "data-name": name, "aria-labelledby": `${id}-title` },
    parts.title, parts.takeaway, parts.panes, element("footer", {}, parts.source, parts.links, parts.numbers));
  parts.numbers.addEventListener("toggle", () => { if (parts.numbers.open) tabulate(parts.numbers, CARDS.get(name).shown); });
  const one = { ...parts, name, slow, wait, waits: Boolean(wait), element: node, shown: null, stamp: "" };
  CARDS.set(name, one);
  if (wait) {
    const button = element("button", { type: "button" }, `Compute (${wait})`);
    button.addEventListener("click", () => { one.waits = false; button.disabled = true; button.textContent = "Computing …"; onSight(); });
    one.offer = () => {
      Object.assign(one, { waits: true, stamp: "" });
      button.disabled = false;
      button.textContent = `Compute (${wait})`;
      parts.panes.replaceChildren(element("div", { class: "pane" }, element("p", { class: "nothing" }, button)));
    };
    one.offer();
  }
  return node;
}

// Marks charts of the previous scenario while the new one is computed.
export function fade(name) {
  for (const chart of CARDS.get(name).panes.querySelectorAll(".chart")) chart.classList.add("stale");
}

// `sides`: one figure, or the pinned one and this one, each {label, figure}.
export async function show(name, sides, links) {
  const { title, takeaway, panes, source, links: linkList, numbers } = CARDS.get(name);
  const { figure } = sides.at(-1);
  CARDS.get(name).shown = figure;
  title.textContent = figure.title ?? title.textContent;
  takeaway.textContent = figure.takeaway ?? "";
  source.textContent = figure.source ? `Source: ${figure.source}` : "";
  linkList.replaceChildren(...(figure.reason ? [] : links));
  numbers.hidden = Boolean(figure.reason);
  if (numbers.open) tabulate(numbers, figure);
  while (panes.children.length > sides.length) panes.lastChild.remove();
  while (panes.children.length < sides.length) panes.append(element("div", { class: "pane" }));
  await Promise.all(sides.map((side, i) => showPane(panes.children[i], side, sides.length > 1)));
}

async function showPane(pane, { label, figure }, named) {
  let chart = pane.querySelector(".chart");
  const heading = named ? element("p", { class: "pane-name" }, label) : null;
  pane.querySelector(".pane-name")?.remove();
  if (heading) pane.prepend(heading);
  pane.querySelector(".nothing")?.remove();
  if (figure.reason) {
    chart?.drawn?.view.finalize();
    chart?.remove();
    pane.append(element("p", { class: "nothing" }, `Nothing to draw: ${figure.reason}.`));
    return;
  }
  if (!chart) pane.append(chart = element("div", { class: "chart", role: "img" }));
  chart.setAttribute("aria-label", `${figure.title}. ${figure.takeaway}`);
  if (figure.structure) structures.set(figure.key, figure.structure);
  await draw(chart, { ...figure, structure: structures.get(figure.key) });
  chart.classList.remove("stale");
}

function tabulate(details, figure) {
  if (!figure?.tables) return;
  const tables = Object.entries(figure.tables).filter(([, rows]) => rows.length && Object.keys(rows[0]).length > 1).map(([name, rows]) => {
    const columns = Object.keys(rows[0]).filter((column) => column !== "high");
    const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column)));
    const body = rows.map((row) => element("tr", {}, ...columns.map((column) => element("td", {}, String(row[column])))));
    const table = element("table", {}, element("caption", { class: "quiet" }, name), element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${figure.title}: ${name}` }, table);
  });
  details.replaceChildren(details.querySelector("summary"), ...tables);
}
