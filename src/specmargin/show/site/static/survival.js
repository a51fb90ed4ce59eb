// Acceptance: how far drafts survive, by depth. The arithmetic of acceptance/survival.py.

export class Unreadable extends Error {}

const powers = (alpha, depth) => [...Array(depth).keys()].map((i) => alpha ** (i + 1));
const sum = (values) => values.reduce((total, value) => total + value, 0);

// The value in 0..1 at which a rising function reaches `wanted`.
function bisected(rising, wanted) {
  let low = 0, high = 1;
  for (let i = 0; i < 60; i += 1) {
    const middle = (low + high) / 2;
    if (rising(middle) < wanted) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

// 0.8, 0.78,0.58,0.44, length:2.4@3 or accepted:1.4@3: the survival of the given depths.
export function parseAcceptance(text) {
  const mean = /^(length|accepted):([0-9.]+)@([0-9]+)$/.exec(text);
  if (mean) return ofMean(mean[1], Number(mean[2]), Number(mean[3]));
  const values = text.split(",").map(Number);
  if (!/^[0-9.,\s]+$/.test(text) || values.some((value) => !(value >= 0 && value <= 1))) {
    throw new Unreadable("Acceptance is a probability (0.8), a survival curve (0.78,0.58,0.44) or an accept length (length:2.4@3).");
  }
  if (values.some((value, i) => i && value > values[i - 1])) throw new Unreadable("A survival curve cannot rise with depth.");
  return values;
}

function ofMean(kind, mean, depth) {
  const bonus = kind === "length" ? 1 : 0;
  if (!(depth >= 1 && depth <= 64 && mean >= bonus && mean <= depth + bonus)) {
    throw new Unreadable(`At depth ${depth} a round has ${bonus} to ${depth + bonus} tokens, so ${kind}:${mean}@${depth} is impossible.`);
  }
  return powers(bisected((alpha) => sum(powers(alpha, depth)), mean - bonus), depth);
}

// What was understood, as the command line says it.
export function understood(text, given) {
  const per = (value) => value.toFixed(2), accepted = per(sum(given));
  if (/^(length|accepted):/.test(text)) return `${accepted} accepted drafts per round, ${per(given[0])} per token`;
  return given.length === 1 ? `${per(given[0])} per token` : `${accepted} accepted drafts per round of ${given.length}, ${per(given[0])} for the first`;
}

// S_1..S_depth, extended by the last conditional acceptance.
export function survivalTo(given, depth) {
  const out = given.slice(0, depth), last = given.length - 1;
  const before = last > 0 ? given[last - 1] : 1, ratio = before > 0 ? given[last] / before : 0;
  while (out.length < depth) out.push(out.length ? out[out.length - 1] * ratio : ratio);
  return out;
}

// Every token's acceptance changed by `shift`.
export function shifted(survival, shift) {
  let reached = 1;
  return survival.map((value, i) => (reached *= Math.min(Math.max(value / Math.max(i ? survival[i - 1] : 1, 1e-12) + shift, 0), 1)));
}

// The constant acceptance at which 1 + α + … + α^depth is the price of a round over that of a plain step; null: none.
export function breakEven(ratio, depth) {
  if (depth < 1 || !(ratio <= depth + 1)) return null;
  return ratio <= 1 ? 0 : bisected((alpha) => 1 + sum(powers(alpha, depth)), ratio);
}
