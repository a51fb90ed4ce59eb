// The story: paragraphs with the numbers of the scenario, each with its figure.

import { answer, ask, catalog as readCatalog, Refused } from "./api.js";
import { draw, load, useThemes } from "./charts.js";
import { byId, complain, COUNTS, element, fill, gpuGroups, modelGroups, oneAtATime, underWay } from "./dom.js";
import { BATCHES, ofOtherModel, parse, query, remember } from "./state.js";

let state = parse(location.search);
let catalog = null;
const structures = new Map();
const form = byId("controls");

const refresh = oneAtATime(async () => {
  try {
    const text = query(state);
    const story = await underWay(ask("api/story", text));
    const names = [...new Set(story.paragraphs.map((part) => part.figure))];
    byId("lead").textContent = story.lead;
    story.paragraphs.forEach(showParagraph);
    for (const section of [...byId("paragraphs").children]) {
      if (!story.paragraphs.some((part) => section.id === `part-${part.id}`)) section.remove();
    }
    const { figures } = await underWay(answer([state], { show: names, have: [...structures.keys()] }));
    complain(null);
    await load();
    for (const figure of figures) await show(figure);
    byId("to-explore").href = `./?${query(state)}`;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    complain(error.message);
  }
});

function showParagraph(part, index) {
  let section = byId(`part-${part.id}`);
  if (!section) {
    section = element("section", { id: `part-${part.id}` }, element("h2", {}, part.heading), element("p", {}),
      element("figure", { class: "figure", "data-figure": part.figure }, element("h3"), element("p", { class: "takeaway" }),
        element("div", { class: "chart", role: "img" }), element("footer", {}, element("p"))));
  }
  section.querySelector("p").textContent = part.text;
  const next = byId("paragraphs").children[index];
  if (next !== section) byId("paragraphs").insertBefore(section, next ?? null);
}

async function show(figure) {
  for (const card of document.querySelectorAll(`[data-figure="${figure.name}"]`)) {
    card.hidden = Boolean(figure.reason);
    if (figure.reason) continue;
    if (figure.structure) structures.set(figure.key, figure.structure);
    card.querySelector("h3").textContent = figure.title;
    card.querySelector(".takeaway").textContent = figure.takeaway;
    card.querySelector("footer p").textContent = `Source: ${figure.source}`;
    const chart = card.querySelector(".chart");
    chart.setAttribute("aria-label", `${figure.title}. ${figure.takeaway}`);
    await draw(chart, { ...figure, structure: structures.get(figure.key) });
  }
}

function showControls() {
  const dropped = state.model.startsWith("upload:") ? [["Dropped", [[state.model, "dropped model"]]]] : [];
  fill(form.elements.model, [...dropped, ...modelGroups(catalog)], state.model);
  fill(form.elements.gpu, gpuGroups(catalog), state.gpu);
  fill(form.elements.gpus, [["", COUNTS]], state.gpus);
  byId("batch").value = Math.max(BATCHES.indexOf(Number(state.batch)), 0);
  byId("batch-value").textContent = state.batch;
}

form.addEventListener("input", ({ target }) => {
  if (target.id === "batch") state.batch = String(BATCHES[Number(target.value)]);
  else state[target.name] = target.value;
  if (target.name === "model") Object.assign(state, ofOtherModel(state));
  remember(state);
  showControls();
  refresh();
});
document.documentElement.addEventListener("themechange", () => { if (catalog) refresh(); });

catalog = await readCatalog();
useThemes(catalog.themes);
showControls();
refresh();
