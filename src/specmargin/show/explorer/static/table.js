// The front table: filters by model, kind and GPU, and sorting by a column. Without this script it is a plain table.

const byId = (id) => document.getElementById(id);
const table = byId("front"), rows = [...table.tBodies[0].rows];
const words = (text) => text.toLowerCase().split(/[\s,]+/).filter(Boolean);
const holds = (name, wanted) => !wanted.length || wanted.some((word) => name.toLowerCase().includes(word));

function filter() {
  const models = words(byId("by-model").value), kind = byId("by-kind").value, gpus = words(byId("by-gpu").value);
  for (const row of rows) row.hidden = !holds(row.dataset.model, models) || (kind && row.dataset.kind !== kind);
  for (const cell of table.querySelectorAll("[data-gpu]")) cell.hidden = !holds(cell.dataset.gpu, gpus);
  const shown = rows.filter((row) => !row.hidden).length;
  byId("count").textContent = shown === rows.length ? `${shown} models` : `${shown} of ${rows.length} models`;
}

// The speed-up at the chosen batch, at 16 while all are shown; what has none comes last.
function valueOf(row, gpu) {
  const chosen = document.querySelector('[name="shown"]:checked').value, place = { 1: 0, 16: 1, 64: 2 }[chosen] ?? 1;
  const text = row.querySelector(`td[data-gpu="${CSS.escape(gpu)}"]`)?.dataset.by?.split(",")[place];
  return text ? Number(text) : -Infinity;
}

function sort(head) {
  const by = head.dataset.sort, up = by === "model" ? head.getAttribute("aria-sort") !== "ascending" : head.getAttribute("aria-sort") === "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const order = by === "model" ? (a, b) => a.dataset.model.localeCompare(b.dataset.model) : (a, b) => valueOf(a, by) - valueOf(b, by) || 0;
  const sorted = [...rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
  table.tBodies[0].append(...sorted);
}

for (const head of table.tHead.rows[0].cells) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(head));
  head.append(button);
}
if (matchMedia("(max-width: 560px)").matches) document.querySelector('[name="shown"][value="16"]').checked = true; // as its style shows it
document.body.classList.add("chosen");
byId("filters").hidden = false;
byId("filters").addEventListener("input", filter);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
filter();
