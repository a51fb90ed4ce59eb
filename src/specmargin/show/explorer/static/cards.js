// Cards of figures: created once from the catalog, and drawn when visible.

import { draw } from "./charts.js";
import { byId, element } from "./dom.js";

const CARDS = new Map(); // name -> card
const structures = new Map(); // key -> structure: sent once
const inSight = new Set();
// Room is kept for a figure until it is drawn, so that nothing below it moves: page.css has the heights of the drawings.
const LETTERS = { // of the longest words and the longest source of a figure
  pareto: [125, 235], survival: [130, 200], ledger: [380, 200], crossover: [200, 290], roofline: [280, 235], popularity: [225, 235], overlap: [225, 235],
  day: [350, 290], policies: [245, 290], validation: [290, 200], design: [310, 420],
};
const OTHERS = [210, 210];

export const have = () => [...structures.keys()];
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
  for (const [title, figures] of Map.groupBy(catalog.figures, (figure) => figure.section)) {
    const elements = figures.map((figure) => card(figure, onSight));
    elements.forEach((node) => watcher.observe(node));
    byId("figures").append(element("section", { class: "figures", "aria-label": title },
      element("h2", { class: "section" }, title), element("div", { class: "grid" }, ...elements)));
  }
  let width = innerWidth;
  addEventListener("resize", () => { // charts are laid out for a width
    if (innerWidth === width) return;
    width = innerWidth;
    for (const one of CARDS.values()) one.stamp = "";
    onSight();
  });
}

// Figures that do not apply to this scenario are gone; so is a section without any.
export function keep({ absent, comparing }) {
  for (const one of CARDS.values()) one.element.hidden = absent.includes(one.name) || (one.compare && !comparing);
  tidy();
}

function tidy() {
  for (const section of document.querySelectorAll("section.figures")) section.hidden = [...section.querySelectorAll(".figure")].every((node) => node.hidden);
}

// Figures that take long are drawn only on request, and again only on a new request.
export function askAgain() {
  for (const one of CARDS.values()) if (one.wait) one.offer();
}

function card({ name, title, slow, wait, compare }, onSight) {
  const id = `figure-${name}`;
  const parts = {
    title: element("h3", { id: `${id}-title` }, title),
    takeaway: element("p", { class: "takeaway" }),
    pane: element("div", { class: "pane" }),
    source: element("p"),
    links: element("p"),
    numbers: element("details", { hidden: true }, element("summary", {}, "Numbers")),
  };
  if (slow && !wait) parts.takeaway.textContent = "Computing …";
  const node = element("figure", { class: "figure", id, "data-name": name, "aria-labelledby": `${id}-title`, hidden: Boolean(compare) }, room(name, title),
    element("div", { class: "drawn" }, parts.title, parts.takeaway, parts.pane, element("footer", {}, parts.source, parts.links, parts.numbers)));
  parts.numbers.addEventListener("toggle", () => { if (parts.numbers.open) tabulate(parts.numbers, CARDS.get(name).shown); });
  const one = { ...parts, name, slow: Boolean(slow), wait, compare: Boolean(compare), waits: Boolean(wait), element: node, shown: null, stamp: "" };
  CARDS.set(name, one);
  if (wait) offerable(one, onSight);
  return node;
}

// As tall as the figure will be: its title, words, drawing and source, none of them seen.
function room(name, title) {
  const [words, source] = (LETTERS[name] ?? OTHERS).map((letters) => "a figure in words ".repeat(letters / 18 + 1).slice(0, letters));
  return element("div", { class: "room", "aria-hidden": "true" }, element("b", {}, title), element("p", {}, words), element("i"), element("small", {}, source));
}

function offerable(one, onSight) {
  const button = element("button", { type: "button" }, `Compute (${one.wait})`);
  button.addEventListener("click", () => { one.waits = false; button.disabled = true; button.textContent = "Computing …"; onSight(); });
  one.offer = () => {
    Object.assign(one, { waits: true, stamp: "" });
    button.disabled = false;
    button.textContent = `Compute (${one.wait})`;
    one.pane.replaceChildren(element("p", { class: "nothing" }, button));
  };
  one.offer();
}

// Marks charts of the previous scenario while the new one is computed.
export function fade(name) {
  for (const chart of CARDS.get(name).pane.querySelectorAll(".chart")) chart.classList.add("stale");
}

export async function show(figure, links) {
  const one = CARDS.get(figure.name);
  one.shown = figure;
  if (figure.reason) {
    one.element.hidden = true;
    tidy();
    return;
  }
  one.title.textContent = figure.title;
  one.takeaway.textContent = figure.takeaway;
  one.source.textContent = figure.source ? `Source: ${figure.source}` : "";
  one.links.replaceChildren(...links);
  one.numbers.hidden = false;
  if (one.numbers.open) tabulate(one.numbers, figure);
  let chart = one.pane.querySelector(".chart");
  if (!chart) one.pane.replaceChildren(chart = element("div", { class: "chart", role: "img" }));
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
