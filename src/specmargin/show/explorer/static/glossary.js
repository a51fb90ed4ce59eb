// Terms explained on hover, focus and touch. A control's label names its term (`data-term`), other text uses `term()`.

import { byId, element } from "./dom.js";

export const TERMS = {
  "preset": "Typical loads to start from. Each sets input and output tokens and concurrent requests.",
  "paste": "A Hugging Face id or address, or the text of a config.json. Nothing is downloaded: an id is looked up among those known here.",
  "parallelism": "Tensor parallel splits every layer over all GPUs. Expert parallel places whole experts on GPUs. With data-parallel attention each GPU also has its own sequences.",
  "weights": "Precision of the weights of linear layers. Default: as the model's configuration says.",
  "kv-cache": "Precision of keys and values in the KV cache. Fewer bytes let more sequences fit.",
  "drafter": "What proposes draft tokens: the model's own MTP head, an EAGLE-3 or DFlash head, n-gram lookup. The target model then verifies all of them in one step.",
  "acceptance": "Probability that the target model accepts a draft token, given that it accepted those before it.",
  "survival": "Probability that a draft token and all before it are accepted, by depth: 0.78, 0.58, 0.44 for depths 1, 2, 3.",
  "accept-length": "Mean tokens per round including the bonus token, as engines report it, at a given depth.",
  "depth": "Draft tokens per sequence and step. The schedule uses at most this many.",
  "load": "A batch size, or whole requests: then the service is simulated with prefill and queues.",
  "batch": "Sequences that decode together in one step, over all GPUs.",
  "context": "Tokens in the KV cache per sequence, prompt included.",
  "concurrency": "Requests in flight at any time: each user sends the next one when the last one ends.",
  "qps": "Requests that arrive per second (Poisson).",
  "isl": "Input tokens per request (ISL).",
  "osl": "Output tokens per request (OSL).",
  "range-ratio": "Lengths of requests vary by this fraction around input and output tokens, as with vLLM's --random-range-ratio: 0.5 is ±50%. With 0 all are equal, and requests stay in step without speculation.",
  "tpot": "Time per output token of one request after the first token (TPOT), as seen by its user.",
  "ttft": "Time to first token: queueing and prefill of the prompt.",
  "gpu-hour": "US dollars per GPU-hour, for the cost of a million output tokens. Empty: a list price of a public cloud, where one is known.",
  "prices": "Where step times come from: measured kernels (tables, or laws fitted to them), laws scaled from the nearest measured GPU, or the datasheet.",
  "memory-utilization": "Fraction of GPU memory that the engine may use for weights and KV cache.",
  "routing": "How positions choose experts. Neighbouring positions share experts, so a draft reads fewer experts than independent tokens.",
  "layer": "MoE layer shown in the routing figures.",
  "linked": "All compared scenarios use the batch and context, or the load, of the controls.",
  "speed-up": "Output tokens per second with these flags over those without speculation, on the same machine.",
  "speed-up at a rate": "Time per output token (TPOT) without speculation over that with these flags, at the same request rate: both serve the same tokens per second.",
  "80% range": "Range that should contain the real speed-up in 80% of cases, from the errors of prices, acceptance and routing.",
  "draft": "Draft tokens per sequence and step with these flags.",
  "better": "Another depth that would be faster at this batch by more than the minimum gain; one setting for all batches cannot use it.",
  "tokens/s": "Output tokens per second over all sequences.",
  "plain": "Without speculation.",
  "ms/token": "Time between tokens of one sequence (TPOT) in decode steps.",
  "one more token": "Tokens per second that one more draft token would add, its drafting included.",
  "break-even": "Per-token acceptance at which this depth is as fast as no speculation.",
  "experts read": "Distinct experts per layer that a step reads, on the busiest GPU.",
  "bottleneck": "Component, and its limiting resource, that one more position waits for.",
  "$/M tokens": "GPU cost of a million output tokens at the price per GPU-hour.",
  "plain $/M": "The same without speculation.",
  "fits": "Sequences that fit in memory with these flags at this context.",
};

const slug = (name) => `term-${name.replace(/[^a-z0-9]+/gi, "-")}`;

// A term in running text: reachable by keyboard, described for screen readers.
export function term(name, text = name) {
  if (!TERMS[name]) return document.createTextNode(text);
  return element("span", { class: "term", tabindex: "0", "data-term": name, "aria-describedby": slug(name) }, text);
}

let tip = null;

export function install() {
  const texts = Object.entries(TERMS).map(([name, text]) => element("p", { id: slug(name) }, text));
  document.body.append(element("div", { hidden: true }, ...texts));
  tip = element("div", { id: "tip", role: "tooltip", hidden: true });
  document.body.append(tip);
  for (const label of document.querySelectorAll("label[data-term]")) {
    label.querySelector("select, input")?.setAttribute("aria-describedby", slug(label.dataset.term));
  }
  const near = (target) => target.closest?.("[data-term]");
  document.addEventListener("pointerover", ({ target, pointerType }) => { if (pointerType === "mouse") open(near(target)); });
  document.addEventListener("focusin", ({ target }) => { open(target.matches(":focus-visible") ? near(target) : null); });
  document.addEventListener("pointerup", ({ target, pointerType }) => { if (pointerType !== "mouse") open(near(target)); });
  document.addEventListener("focusout", () => open(null));
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") open(null); });
  addEventListener("scroll", () => open(null), { passive: true, capture: true });
}

function open(target) {
  const text = target && TERMS[target.dataset.term];
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = target.getBoundingClientRect();
  const width = Math.min(300, innerWidth - 16);
  tip.style.maxWidth = `${width}px`;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
  const below = box.bottom + 6;
  tip.style.top = `${below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
}

export const hideTip = () => open(null);
export const shownTip = () => (byId("tip").hidden ? "" : byId("tip").textContent);
