// A cell: a model on GPUs in an engine, as `specmargin site` wrote it (show/site/grids.py). Reads its file, and interpolates.

import { between, inflated, place, Reader } from "./coding.js";

const LOG = { scale: Math.log }, OUTSIDE = { outside: true };
const ascending = (a, b) => a - b;

// `axes`: what all cells have in common, as show/site/axes.py wrote it.
export async function readCell(content, axes) {
  const bytes = new Uint8Array(content), end = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const [header, numbers] = await Promise.all([inflated(bytes.subarray(4, end)), inflated(bytes.subarray(end))]);
  return new Cell(JSON.parse(new TextDecoder().decode(header)), new Reader(numbers), axes);
}

class Cell {
  constructor(header, reader, axes) {
    Object.assign(this, header, { axes });
    const coarse = axes.coarse.filter((tokens) => tokens <= this.longest && !this.contexts.includes(tokens));
    this.allContexts = [...this.contexts, ...coarse].sort(ascending);
    this.memoryContexts = this.allContexts.filter((tokens) => [...axes.octaves, ...this.contexts, this.longest].includes(tokens));
    this.anchored = this.anchors.map(([batch]) => batch);
    this.read(reader, [...this.contexts, ...coarse]);
  }

  read(reader, stored) {
    const { quanta } = this.axes, depths = this.depth + 1, last = this.drafters[this.drafters.length - 1];
    const drafted = this.drafters.reduce((sum, { columns, depth }) => sum + (columns.times === null ? 0 : depth), 0);
    const table = (contexts, columns, scaled) => {
      const rows = reader.table(contexts, columns);
      return contexts.map((tokens) => rows.get(tokens).map((series) => series.map(scaled)));
    };
    const batches = [...Array(this.axes.one_by_one).keys()].map((i) => i + 1).concat(this.axes.beyond);
    const seconds = (at) => (value, i) => value * quanta.seconds * this.unit(at[i]);
    this.times = table(this.contexts, 1 + depths + drafted, seconds(batches));
    this.batches = this.times.map(([plain]) => batches.slice(0, plain.length));
    const corrections = table(stored, 1 + depths + drafted, (value) => value * quanta.corrections);
    this.corrections = this.allContexts.map((tokens) => corrections[stored.indexOf(tokens)]);
    this.uniform = this.routing_range && table(this.contexts, last.columns.uniform + last.depth, (value) => value * quanta.moved);
    this.added = table(this.contexts, depths, seconds(this.axes.sampled));
    this.bound = table(this.contexts, depths, (value) => value);
    [this.distinct] = this.experts === null ? [null] : table([0], depths, (value) => value * quanta.experts);
    [this.memory] = table([0], last.columns.memory + last.depth + 1, (value) => value * quanta.bytes);
    this.sampled = this.axes.sampled.slice(0, this.added[0][0].length);
  }

  allowed(batch, depth) { return depth === 0 || this.graph_limit === null || batch * (depth + 1) <= this.graph_limit; }

  unit(batch) { return between(this.anchored, (i) => this.anchors[i][1], batch); }

  // --- values at any context and batch ---

  // Seconds of one column, linear in the batch and in the context, corrected between contexts.
  at(tokens, batch, column) {
    const value = between(this.contexts, (i) => this.atBatch(this.batches[i], this.times[i][column], batch), tokens, OUTSIDE);
    if (this.contexts.includes(tokens)) return value;
    const missed = (i) => between(this.knots, (j) => this.corrections[i][column][j], batch);
    return value + this.unit(batch) * between(this.allContexts, missed, tokens, OUTSIDE);
  }

  atBatch(batches, series, batch) {
    if (batch <= this.axes.one_by_one && Number.isInteger(batch)) return series[batch - 1];
    return between(batches, (i) => series[i], batch, OUTSIDE);
  }

  plain(tokens, batch) { return this.at(tokens, batch, 0); }

  verify(tokens, batch, depth) { return this.at(tokens, batch, depth + 1); }

  round(drafter, tokens, batch, depth) {
    const { times } = this.drafters[drafter].columns, verified = this.verify(tokens, batch, depth);
    return depth && times !== null ? verified + this.at(tokens, batch, times + depth - 1) : verified;
  }

  sample(series, batch) { return between(this.sampled, (i) => series[i], batch, LOG); }

  // How far the logarithm of round over plain step moves under uniform routing; 0 where routing is known.
  uniformShift(drafter, tokens, batch, depth) {
    if (!this.uniform) return 0;
    return between(this.contexts, (i) => this.sample(this.uniform[i][this.drafters[drafter].columns.uniform + depth - 1], batch), tokens);
  }

  // Seconds of one more position, its bottleneck, and the experts that are read.
  oneMore(tokens, batch, depth) {
    const context = place(this.contexts, tokens), [low, share] = place(this.sampled, batch, LOG);
    return {
      seconds: between(this.contexts, (i) => this.sample(this.added[i][depth], batch), tokens),
      bound: this.bounds[this.bound[context[0] + Math.round(context[1])][depth][low + Math.round(share)]],
      experts: this.distinct && this.sample(this.distinct[depth], batch),
    };
  }

  // --- memory ---

  held(free, tokens, column) {
    const bytes = between(this.memoryContexts, (i) => this.memory[column][i], tokens, OUTSIDE);
    return Math.max(Math.floor((free - this.weight_bytes) / Math.max(bytes, 1)), 0);
  }

  fits(drafter, tokens, depth) {
    const { columns, weight_bytes: own } = this.drafters[drafter];
    return this.held(this.usable_bytes - own, tokens, columns.memory + depth);
  }

  plainFits(tokens) { return this.held(this.usable_bytes, tokens, 0); }
}
