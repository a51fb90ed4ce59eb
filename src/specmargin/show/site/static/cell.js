// A cell, a model on GPUs in an engine, at one context: what show/site/grids.py wrote, interpolated.

import { around, place } from "./knots.js";

// Numbers, or arrays of them of any depth.
const mixed = (a, b, share) => (typeof a === "number" ? (1 - share) * a + share * b : a.map((each, i) => mixed(each, b[i], share)));

export function between(values, [low, share]) {
  if (share === 0) return values[low];
  return share === 1 ? values[low + 1] : mixed(values[low], values[low + 1], share);
}

// Rows of whole numbers, stored as differences along each row; the lowest bytes of all first, then the next ones.
class Rows {
  constructor(bytes) {
    const count = bytes.length / 4, byte = (i, j) => bytes[j * count + i] << (8 * j);
    this.numbers = Int32Array.from({ length: count }, (_, i) => byte(i, 0) | byte(i, 1) | byte(i, 2) | byte(i, 3));
    this.read = 0;
  }

  take(rows, length) {
    return Array.from({ length: rows }, () => {
      let value = 0;
      this.read += length;
      return Float64Array.from(this.numbers.subarray(this.read - length, this.read), (difference) => (value += difference));
    });
  }
}

async function readTable(content, { batches, sampled, depth, drafters, quantum, hurdle_quantum: fine }) {
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate"));
  const stored = new Rows(new Uint8Array(await new Response(stream).arrayBuffer()));
  const times = (rows, of) => stored.take(rows, batches.length).map((row, at) => row.map((value, i) => of(at)[i] * Math.exp(value * quantum)));
  const shares = (rows) => stored.take(rows, sampled.length).map((row) => row.map((value) => value * quantum));
  const [plain] = times(1, () => batches.map(() => 1)), verify = times(depth + 1, () => plain);
  const rounds = drafters.map((drafter) => [verify[0], ...times(drafter.depth, (at) => verify[at + 1])]);
  const next = drafters.map(() => ({
    more: stored.take(depth + 1, batches.length).map((row) => row.map((value, i) => (value * fine) / batches[i])), bound: stored.take(depth + 1, batches.length),
  }));
  const uniform = drafters.map((drafter) => shares(drafter.depth));
  const priced = drafters.map(({ depth: deepest }) => ({ low: shares(deepest), high: shares(deepest), unknown: stored.take(deepest, sampled.length) }));
  const of = (name) => priced.map((drafter) => drafter[name]);
  return { plain, verify, rounds, more: next.map(({ more }) => more), bound: next.map(({ bound }) => bound), uniform, low: of("low"), high: of("high"), unknown: of("unknown") };
}

// `read(tokens)`: the content of the table of a context.
export async function sliceOf(cell, tokens, read) {
  const at = place(cell.contexts, tokens), [, share] = at;
  const tables = await Promise.all(around(cell.contexts, tokens).map(async (knot) => readTable(await read(knot), cell)));
  const of = (name) => (tables.length > 1 ? mixed(tables[0][name], tables[1][name], share) : tables[0][name]);
  const [near] = tables.slice(share > 0.5 ? -1 : 0);
  const times = { plain: of("plain"), verify: of("verify"), rounds: of("rounds"), more: of("more"), uniform: of("uniform"), low: of("low"), high: of("high"), bound: near.bound, unknown: near.unknown };
  return new Slice(cell, { ...times, plainBytes: between(cell.bytes, at), bytes: cell.drafters.map((drafter) => between(drafter.bytes, at)) });
}

class Slice {
  constructor(cell, tables) {
    Object.assign(this, tables, { cell, logarithms: cell.sampled.map(Math.log) });
  }

  allowed(batch, depth) { return depth === 0 || this.cell.graph_limit === null || batch * (depth + 1) <= this.cell.graph_limit; }

  sample(series, batch) {
    const [low, share] = place(this.logarithms, Math.log(batch));
    return between(series, [low, Math.min(Math.max(share, 0), 1)]);
  }

  // How far the logarithm of round over plain step moves under uniform routing; 0 where routing is known.
  uniformShift(drafter, batch, depth) { return this.sample(this.uniform[drafter][depth - 1], batch); }

  // Logarithms of the factors by which prices could change a speed-up, and what is most uncertain about them.
  priceRange(drafter, batch, depth) {
    const { price_range: range, price_unknowns: unknowns } = this.cell, at = (name) => this.sample(this[name][drafter][depth - 1], batch);
    return { ...range, phrase: unknowns[this.unknown[drafter][depth - 1][this.nearest(batch)]], range: [at("low"), at("high")] };
  }

  // The place of the nearest sampled batch.
  nearest(batch) {
    const [low, share] = place(this.logarithms, Math.log(batch));
    return Math.min(low + Math.round(share), this.cell.sampled.length - 1);
  }

  // One more position over a plain step, its bottleneck, and the experts that are read.
  oneMore(drafter, batch, depth) {
    const { batches, bounds, distinct } = this.cell, [low, share] = place(batches, batch), at = [low, Math.min(Math.max(share, 0), 1)];
    return {
      share: between(this.more[drafter][depth], at), bound: bounds[this.bound[drafter][depth][at[0] + Math.round(at[1])]],
      experts: distinct && this.sample(distinct[depth], batch),
    };
  }

  plainFits() { return Math.max(Math.floor(this.cell.free_bytes / this.plainBytes), 0); }

  fits(drafter, depth) {
    const free = this.cell.free_bytes - this.cell.drafters[drafter].weight_bytes;
    return Math.max(Math.floor(free / Math.max(this.bytes[drafter][depth], 1)), 0);
  }
}
