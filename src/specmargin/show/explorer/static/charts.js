// Drawing: a chart is built once per structure, and then only gets new rows.

let vega = null; // promise of the libraries, loaded once
let themes = {};

export function useThemes(byName) { themes = byName; }

export function load() {
  vega ??= import("./lib/vega.js").then(() => window.vegaEmbed);
  return vega;
}

const themeName = () => document.documentElement.dataset.theme ?? "light";

// Widths of drawn panes. To read one while the page changes would lay out the whole page first.
const widths = new WeakMap();
const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => widths.set(target, target.clientWidth)));
const widthOf = (pane) => widths.get(pane) || pane.clientWidth;

// `pane` is an element; its drawn chart is stored on it. A chart is laid out for a width, so another width is another chart.
export async function draw(pane, figure) {
  const width = widthOf(pane);
  const key = `${figure.key}|${themeName()}|${width}`;
  if (pane.drawn?.key === key) {
    await update(pane.drawn, figure.tables);
    return;
  }
  const embed = await load();
  pane.drawn?.view.finalize();
  const result = await embed(pane, specification(figure, width), {
    actions: false,
    ast: true, // expressions are interpreted: no eval, as the content security policy demands
    renderer: "svg",
    logLevel: 1, // errors only
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true, theme: "custom" },
  });
  pane.querySelector("svg")?.setAttribute("aria-hidden", "true"); // the pane itself is the labelled image
  pane.drawn = { key, view: result.view, texts: new Map(Object.entries(figure.tables).map(([name, rows]) => [name, JSON.stringify(rows)])) };
  pane.classList.add("full");
  watcher.observe(pane);
}

// Only tables that differ; nothing is drawn where none does.
async function update({ view, texts }, tables) {
  const texted = Object.entries(tables).map(([name, rows]) => [name, rows, JSON.stringify(rows)]);
  const changed = texted.filter(([name, , text]) => texts.get(name) !== text);
  if (!changed.length) return;
  for (const [name, rows, text] of changed) {
    view.data(name, rows);
    texts.set(name, text);
  }
  await view.runAsync();
}

// Small screens: smaller type, and legends below the drawing.
function fitted(config, width) {
  if (width > 520) return config;
  const small = (style, fontSize) => ({ ...config.style[style], fontSize });
  const gone = { fontSize: 1, opacity: 0 };
  const cell = Math.min(10, width / 38); // ten columns of five characters
  const words = width > 420 ? { fontSize: 9 } : gone;
  return {
    ...config,
    legend: { ...config.legend, orient: "bottom", direction: "horizontal", labelFontSize: 10 },
    axis: { ...config.axis, labelFontSize: 9.5, titleFontSize: 11 },
    style: { ...config.style, "cell-low": small("cell-low", cell), "cell-high": small("cell-high", cell), note: small("note", 9.5),
      label: small("label", 10), aside: { ...config.style.aside, ...words } },
  };
}

// Small screens: at most two legend columns.
const narrowed = (structure, width) => (width > 520 ? structure
  : JSON.parse(JSON.stringify(structure), (key, value) => (key === "columns" ? Math.min(value, 2) : value)));

// Panels below each other are as wide as the page; panels side by side break into rows where they do not fit.
function placed(structure, width) {
  const { hconcat, vconcat, ...rest } = structure;
  if (hconcat) {
    const columns = Math.max(1, Math.min(hconcat.length, Math.round(width / 280)));
    const wide = Math.max(Math.floor(width / columns) - 130, 150); // besides the names and numbers of bars
    return { ...rest, concat: hconcat.map((part) => (Number(part.width) ? { ...part, width: wide } : part)), columns };
  }
  if (vconcat) return { ...rest, vconcat: vconcat.map((part) => ({ ...part, width: Math.max(width - 110, 160) })) };
  if (rest.concat) return rest;
  return { ...rest, width: "container", height: 300, autosize: { type: "fit-x", contains: "padding" } };
}

function specification(figure, width) {
  const config = fitted({ ...themes[themeName()], background: "transparent", aria: false }, width);
  const structure = placed(narrowed(figure.structure, width), width);
  return { ...structure, padding: { left: 4, top: 6, bottom: 4, right: 6 }, datasets: { ...structure.datasets, ...figure.tables }, config };
}
