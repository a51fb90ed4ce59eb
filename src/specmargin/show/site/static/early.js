// Inside the page: asks for the grid of the address while the page's script still loads. What it gets wrong is asked for again.

import { folderModel } from "./address.js";
import { header, keyOf, site, table } from "./grids.js";
import { around } from "./knots.js";

const asked = new URLSearchParams(location.search);
const offers = (list, name) => site.catalog[list].some((entry) => entry.name === name);

async function ask() {
  const model = asked.get("model") || folderModel(site.catalog.models.map(({ name }) => name));
  const gpu = asked.get("gpu") || site.catalog.gpus[0].name, engine = asked.get("engine");
  const refused = site.refused[model]; // known for the model of this page
  if (!refused || !offers("gpus", gpu) || (engine && !offers("engines", engine))) return;
  const key = keyOf(gpu, { model, engine });
  const cell = refused[key] ? null : await header(key), tokens = Number(asked.get("context") || 1024);
  if (cell && tokens >= cell.contexts[0] && tokens <= cell.contexts.at(-1)) for (const knot of around(cell.contexts, tokens)) table(key, knot);
}

ask();
