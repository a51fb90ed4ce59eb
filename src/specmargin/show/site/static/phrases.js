// Sentences from templates: `phrases.py` in the browser. Python writes the templates, so that each exists once.

const SLOT = /\{([a-z_]+)(!|:[^}]*)?\}/g, OPTIONAL = /\[([^\]]*)\]/;
const absent = (value) => value === null || value === undefined || value === false;

// Python's `format(value, form)` for the forms ",", ".2f", ",.0f" and "g".
function formatted(value, form) {
  if (typeof value === "string") return value;
  const digits = /\.(\d)f/.exec(form)?.[1];
  const precision = digits === undefined ? { maximumFractionDigits: 6 } : { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString("en", { ...precision, useGrouping: form.includes(","), roundingMode: "halfEven" });
}

// A template with its values; null where one is absent.
export function fill(template, values, valueOf = (name) => values[name]) {
  const slots = [...template.matchAll(SLOT)].map(([, name, form]) => [valueOf(name), form ?? ""]);
  if (slots.some(([value]) => absent(value))) return null;
  return template.replace(SLOT, () => { const [value, form] = slots.shift(); return form === "!" ? "" : formatted(value, form); });
}

export const say = (name, phrases, values) => lines(name, phrases, values, 1)[0] ?? null;

// The first templates of this name that have all their values, each text once.
export function lines(name, phrases, values, most) {
  const valueOf = (slot) => (slot in phrases ? say(slot, phrases, values) : values[slot]), texts = new Set();
  for (const template of phrases[name]) {
    const parts = template.split(OPTIONAL).map((part) => fill(part, values, valueOf)); // every second one is optional
    if (parts.every((part, i) => i % 2 || part !== null)) texts.add(parts.join(""));
    if (texts.size === most) break;
  }
  return [...texts];
}

export function listed(each, items, phrases, between) {
  const count = items.length;
  return items.map((item, i) => say(each, phrases, { first: i === 0, second: i === 1, end: i === count - 1, only: count === 1, ...item })).join(between);
}
