// Drawing: a chart is built once for each structure, and then only given new rows.

let vega = null; // the libraries, asked for once
let themes = {};

export function useThemes(found) { themes = found; }

export function load() {
  vega ??= import("/static/lib/vega.js").then(() => window.vegaEmbed);
  return vega;
}

const themeName = () => document.documentElement.dataset.theme ?? "light";

// `pane` is an element; what was drawn in it is kept on it.
export async function draw(pane, figure) {
  const key = `${figure.key}|${themeName()}`;
  if (pane.drawn?.key === key) {
    const { view } = pane.drawn;
    for (const [name, rows] of Object.entries(figure.tables)) view.data(name, rows);
    await view.runAsync();
    return;
  }
  const embed = await load();
  pane.drawn?.view.finalize();
  const result = await embed(pane, specification(figure, pane), {
    actions: false,
    ast: true, // expressions are interpreted: no eval, as our content policy demands
    renderer: "svg",
    logLevel: 1, // errors; an empty table is none
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true, theme: "custom" },
  });
  pane.querySelector("svg")?.setAttribute("aria-hidden", "true"); // the pane itself is the image, with words for it
  pane.drawn = { key, view: result.view };
}

// On a small screen smaller type, and legends below the drawing.
function fitted(config, width) {
  if (width > 520) return config;
  const small = (style, fontSize = 7.8) => ({ ...config.style[style], fontSize });
  return {
    ...config,
    legend: { ...config.legend, orient: "bottom", direction: "horizontal", labelFontSize: 10 },
    axis: { ...config.axis, labelFontSize: 9.5, titleFontSize: 11 },
    style: { ...config.style, "cell-low": small("cell-low"), "cell-high": small("cell-high"), note: small("note", 9.5), "band-label": small("band-label", 0) },
  };
}

function specification(figure, pane) {
  const config = fitted({ ...themes[themeName()], background: "transparent", aria: false }, pane.clientWidth);
  const single = !("hconcat" in figure.structure || "concat" in figure.structure || "vconcat" in figure.structure);
  const size = single ? { width: "container", height: 300, autosize: { type: "fit-x", contains: "padding" } } : {};
  return { ...figure.structure, ...size, padding: { left: 4, top: 6, bottom: 4, right: 6 }, datasets: { ...figure.structure.datasets, ...figure.tables }, config };
}
