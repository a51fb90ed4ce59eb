// Cards of figures: made once from the catalog, drawn when they are in sight, and given what the server says.

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
    const made = figures.map((figure) => card(figure));
    made.forEach((one) => watcher.observe(one));
    byId("figures").append(element("h2", { class: "section" }, title), element("div", { class: "grid" }, ...made));
  }
}

function card({ name, slow }) {
  const id = `figure-${name}`;
  const parts = {
    title: element("h3", { id: `${id}-title` }, name),
    takeaway: element("p", { class: "takeaway" }),
    panes: element("div", { class: "panes" }),
    source: element("p"),
    links: element("p"),
    numbers: element("details", {}, element("summary", {}, "Numbers")),
  };
  const made = element("figure", { class: "figure", id, "data-name": name, "aria-labelledby": `${id}-title` },
    parts.title, parts.takeaway, parts.panes, element("footer", {}, parts.source, parts.links, parts.numbers));
  parts.numbers.addEventListener("toggle", () => { if (parts.numbers.open) tabulate(parts.numbers, CARDS.get(name).shown); });
  CARDS.set(name, { ...parts, name, slow, element: made, shown: null, stamp: "" });
  return made;
}

// `sides`: one figure, or the pinned one and this one, each {label, figure}.
export async function show(name, sides, links) {
  const { title, takeaway, panes, source, links: place, numbers } = CARDS.get(name);
  const { figure } = sides.at(-1);
  CARDS.get(name).shown = figure;
  title.textContent = figure.title ?? title.textContent;
  takeaway.textContent = figure.takeaway ?? "";
  source.textContent = figure.source ? `Source: ${figure.source}` : "";
  place.replaceChildren(...(figure.reason ? [] : links));
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

function tabulate(place, figure) {
  if (!figure?.tables) return;
  const made = Object.entries(figure.tables).filter(([, rows]) => rows.length && Object.keys(rows[0]).length > 1).map(([name, rows]) => {
    const columns = Object.keys(rows[0]).filter((column) => column !== "high");
    const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column)));
    const body = rows.map((row) => element("tr", {}, ...columns.map((column) => element("td", {}, String(row[column])))));
    const table = element("table", {}, element("caption", { class: "quiet" }, name), element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${figure.title}: ${name}` }, table);
  });
  place.replaceChildren(place.querySelector("summary"), ...made);
}
