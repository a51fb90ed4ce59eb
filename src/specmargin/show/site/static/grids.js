// Files of the site: its data, which every page has inside, and grids of cells, each asked for once.

import { ROOT } from "./address.js";
import { enginesOf } from "./dom.js";

export const site = JSON.parse(document.getElementById("site").textContent);
const loaded = (globalThis.specmarginFiles ??= new Map()); // by path: promises; shared with the script inside the page

// null: there is no such file, or no connection.
function fetched(path, form) {
  const loading = loaded.get(path) ?? fetch(new URL(path, ROOT)).then((reply) => (reply.ok ? reply[form]() : null)).catch(() => null);
  loading.then((content) => { if (content === null) loaded.delete(path); });
  loaded.set(path, loading);
  return loading;
}

// Without an engine, the first of this site's that runs on the GPU.
export function keyOf(gpu, { model, engine }) {
  return `${model}/${gpu}-${engine || (enginesOf(site.catalog, gpu)[0] ?? site.catalog.engines[0]).name}`;
}

export const headerPath = (key) => `data/${key}.json`;
export const tablePath = (key, tokens) => `data/${key}/${tokens}.bin`;
export const header = (key) => fetched(headerPath(key), "json");
export const table = (key, tokens) => fetched(tablePath(key, tokens), "arrayBuffer");

// By key of a cell: why it is not on the site.
export const refusals = async (model) => site.refused[model] ?? (await fetched(`data/${model}/refused.json`, "json")) ?? {};
