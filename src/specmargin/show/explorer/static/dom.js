// Helpers of both pages.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const filled = new WeakMap(); // select -> its options as text; they are made again only when they differ

export function fill(select, groups, chosen) {
  const text = JSON.stringify(groups);
  if (filled.get(select) !== text) {
    const children = groups.map(([label, options]) => {
      const nodes = options.map(([value, shown]) => element("option", { value }, shown ?? value));
      return label ? element("optgroup", { label }, ...nodes) : nodes;
    });
    select.replaceChildren(...children.flat());
    filled.set(select, text);
  }
  select.value = chosen;
  return select.value === chosen;
}

export function complain(message) {
  const alert = byId("error");
  alert.hidden = !message;
  alert.textContent = message ?? "";
}

// One call at a time; calls that arrive meanwhile are merged into one.
export function oneAtATime(work) {
  let running = false, waiting = false;
  return async function run() {
    if (running) { waiting = true; return; }
    running = true;
    try {
      do { waiting = false; await work(); } while (waiting);
    } finally {
      running = false;
    }
  };
}

// Marks the page as busy while work takes longer than 250 ms: most changes are drawn before, and would only flicker.
// Meanwhile what is shown is of the old answer: its texts cannot be copied.
export async function underWay(work) {
  const main = document.querySelector("main");
  const copies = [...document.querySelectorAll("[data-copies]:not(:disabled)")];
  const disable = (old) => copies.forEach((button) => { button.disabled = old; });
  const timer = setTimeout(() => { main.setAttribute("aria-busy", "true"); disable(true); }, 250);
  try {
    return await work;
  } finally {
    clearTimeout(timer);
    main.removeAttribute("aria-busy");
    disable(false);
  }
}

export const times = (value) => `${value.toFixed(2)}×`;
export const whole = (value) => Math.round(value).toLocaleString("en");

export function modelGroups(catalog) {
  const named = (list) => list.map((m) => [m.name, m.name]);
  return [
    ["Mixtures of experts", named(catalog.models.filter((m) => m.experts))],
    ["Dense", named(catalog.models.filter((m) => !m.experts))],
  ];
}

export function gpuGroups(catalog) {
  const named = (list) => list.map((g) => [g.name, g.title.replace(/^NVIDIA (GeForce )?|^AMD (Instinct )?/, "")]);
  return [
    ["Measured kernels", named(catalog.gpus.filter((g) => g.measured))],
    ["Datasheet only", named(catalog.gpus.filter((g) => !g.measured))],
  ];
}

// Of the chosen model and GPU; beside the names in the lists they would not fit.
export function sizesOf(catalog, { model, gpu }) {
  const m = catalog.models.find(({ name }) => name === model), g = catalog.gpus.find(({ name }) => name === gpu);
  const experts = m?.experts ? `, ${m.experts_per_token} of ${m.experts} experts` : "";
  return [m && `${m.size}${experts}`, g && `${g.gigabytes} GB per GPU`].filter(Boolean).join("; ");
}

// The engines that run on a GPU, its default first; all of them for a GPU that is not listed.
export function enginesOf(catalog, gpu) {
  const runs = catalog.gpus.find((g) => g.name === gpu)?.engines;
  return catalog.engines.filter((engine) => !runs || runs.includes(engine.name));
}

export const COUNTS = ["1", "2", "4", "8", "16", "32", "64"].map((n) => [n, n]);
