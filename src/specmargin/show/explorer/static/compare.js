// Several scenarios side by side: tiles with differences from the first, and one table.

import { bound, summary } from "./answer.js";
import { byId, element, times, whole } from "./dom.js";
import { term } from "./glossary.js";
import { costs, gainTerm } from "./verdict.js";

const percent = (value, base) => {
  const change = Math.round((value / base - 1) * 100);
  return change === 0 ? "same" : `${change > 0 ? "+" : "−"}${Math.abs(change)}%`;
};
const gainOf = ({ plan, here }) => (plan.service ?? here).speedup;
const perSecond = ({ plan, here }) => plan.service?.speculating.tokens_per_second ?? here.goodput_tokens_per_second;
const perToken = ({ plan, here }) => plan.service?.speculating.tpot_seconds ?? here.tpot_seconds;

// `act`: { remove(index), take(index) } of the compared scenarios, from 0.
export function show(answers, { linked }, act) {
  const several = answers.length > 1;
  document.body.classList.toggle("comparing", several);
  byId("clear").hidden = !several;
  byId("link-row").hidden = !several;
  byId("linked").checked = linked;
  byId("compare-scroll").hidden = !several;
  byId("sides").replaceChildren(...(several ? answers.map((answer, i) => side(answer, i, answers[0], act)) : []));
  byId("compared").replaceChildren(...(several ? table(answers) : []));
}

function side(answer, index, first, act) {
  const buttons = index === 0 ? element("small", {}, "current scenario") : element("span", { class: "side-buttons" },
    button("Edit", `Edit ${answer.label} in the controls`, () => act.take(index - 1)),
    button("Remove", `Remove ${answer.label}`, () => act.remove(index - 1)));
  const heading = element("h3", {}, answer.label);
  if (answer.refused) return element("li", { class: "refused" }, heading, element("p", {}, answer.refused), buttons);
  const facts = [];
  if (index) {
    const difference = gainOf(answer) - gainOf(first);
    facts.push(`${difference >= 0 ? "+" : "−"}${times(Math.abs(difference))} speed-up`);
    facts.push(`${percent(perSecond(answer), perSecond(first))} tokens/s`);
    facts.push(`${percent(perToken(answer), perToken(first))} ms/token`);
  }
  const { says, line } = summary(answer);
  return element("li", { "data-says": says }, heading,
    element("p", { class: "big" }, times(gainOf(answer)), element("small", {}, says === "too-large" ? " does not fit" : says === "unsupported" ? " no engine runs it" : ` ${line.split(/[: ]/)[0].toLowerCase()}`)),
    element("p", { class: "deltas" }, facts.join(", ") || `${whole(perSecond(answer))} tokens/s, ${(perToken(answer) * 1e3).toFixed(2)} ms/token`), buttons);
}

function button(text, label, act) {
  const node = element("button", { type: "button", class: "plain", "aria-label": label }, text);
  node.addEventListener("click", act);
  return node;
}

const COLUMNS = [
  ["speed-up", (one) => times(gainOf(one))],
  ["80% range", ({ plan, here }) => { const gain = plan.service ?? here; return `${gain.speedup_low.toFixed(2)} to ${times(gain.speedup_high)}`; }],
  ["draft", ({ here }) => here.depth || "off"],
  ["tokens/s", (one) => whole(perSecond(one))],
  ["plain", ({ plan, here }) => whole(plan.service?.plain.tokens_per_second ?? here.no_spec_tokens_per_second)],
  ["ms/token", (one) => (perToken(one) * 1e3).toFixed(2)],
  ["$/M tokens", ({ plan, here }) => { const cost = costs(plan, here); return cost ? `$${cost.drafting.toFixed(3)}` : ""; }],
  ["fits", ({ plan }) => whole(plan.largest_batch)],
  ["break-even", ({ here }) => here.break_even_acceptance?.toFixed(2) ?? "never"],
  ["bottleneck", ({ here }) => bound(here), "text"],
];

function table(answers) {
  const priced = answers.some(({ here }) => here?.cost_per_million_tokens !== undefined);
  const columns = COLUMNS.filter(([name]) => name !== "$/M tokens" || priced);
  const { plan, here } = answers.find((one) => !one.refused) ?? {};
  const batches = new Set(answers.filter((one) => one.here).map((one) => one.here.batch));
  const caption = batches.size > 1 ? "Each at its own load" : `At batch ${whole(here?.batch ?? 1)}`;
  const head = element("tr", {}, element("th", { scope: "col", class: "text" }, "scenario"), ...columns.map(([name, , kind]) => element("th", { scope: "col", class: kind ?? "" }, name === "speed-up" && plan ? term(gainTerm(plan), name) : term(name))));
  const rows = answers.map((one) => element("tr", { class: one.refused || !one.here.fits ? "dim" : "" },
    element("th", { scope: "row", class: "text" }, one.label),
    ...(one.refused ? [element("td", { class: "text wide", colspan: columns.length }, one.refused)]
      : columns.map(([, cell, kind]) => element("td", { class: kind ?? "" }, String(cell(one)))))));
  return [element("caption", { class: "quiet" }, caption), element("thead", {}, head), element("tbody", {}, ...rows)];
}
