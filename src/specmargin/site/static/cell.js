// A cell: a model on GPUs in an engine, as `specmargin site` wrote it. Reads its file, and interpolates.

const QUANTUM = 3e-6, MOVED = 1e-4, BYTES = 0.125, COARSE = 2e-5, EXPERTS = 0.01, ONE_BY_ONE = 512;

const range = (count) => [...Array(count).keys()];

// `axes`: what all cells have in common, as site/grids.py wrote it.
export async function readCell(content, axes) {
  const bytes = new Uint8Array(content), end = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const [header, numbers] = await Promise.all([inflated(bytes.subarray(4, end)), inflated(bytes.subarray(end))]);
  return new Cell(JSON.parse(new TextDecoder().decode(header)), new Reader(numbers), axes);
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Series of whole numbers: the order of their differences, and these; seven bits per byte, the sign in the lowest bit.
class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }

  series(length) {
    const order = this.number(), values = new Float64Array(length);
    for (let i = 0; i < length; i += 1) values[i] = this.number();
    for (let each = 0; each < order; each += 1) for (let i = 1; i < length; i += 1) values[i] += values[i - 1];
    return values;
  }

  number() {
    let rest = 0, scale = 1, byte;
    do {
      byte = this.bytes[this.at];
      this.at += 1;
      rest += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return rest % 2 ? -(rest + 1) / 2 : rest / 2;
  }
}

class Cell {
  constructor(header, reader, axes) {
    Object.assign(this, header);
    this.batches = this.beyond_counts.map((count) => range(ONE_BY_ONE).map((i) => i + 1).concat(axes.beyond.slice(0, count)));
    this.sampled = axes.sampled.slice(0, this.sampled_count);
    this.coarseContexts = axes.coarse.filter((tokens) => tokens <= this.longest && !this.contexts.includes(tokens));
    this.allContexts = [...this.contexts, ...this.coarseContexts].sort((a, b) => a - b);
    this.memoryContexts = this.allContexts.filter((tokens) => [...axes.octaves, ...this.contexts, this.longest].includes(tokens));
    this.anchored = this.anchors.map(([batch]) => batch);
    this.steps = this.readSteps(reader);
    this.drafting = this.drafters.map((drafter) => (drafter.costs ? this.readDrafting(reader, drafter.depth) : null));
    this.stepCorrections = this.readCorrections(reader, range(this.depth + 2));
    this.draftCorrections = this.drafters.map(({ costs, depth }) => (costs ? this.readCorrections(reader, range(depth).map((i) => i + 2)) : null));
    this.uniform = this.drafters.map((drafter) => (this.routing_range ? this.readUniform(reader, drafter.depth) : null));
    this.readOneMore(reader);
    this.plainBytes = reader.series(this.memoryContexts.length).map((value) => value * BYTES);
    this.sequenceBytes = this.drafters.map(({ depth }) => this.memoryContexts.map(() => reader.series(depth + 1).map((value) => value * BYTES)));
  }

  allowed(batch, depth) { return depth === 0 || this.graph_limit === null || batch * (depth + 1) <= this.graph_limit; }

  // Columns are plain steps, then verify steps at depth 0, 1, …; those without a CUDA graph are left out, but not depth 1.
  rows(batches, column) {
    const rows = [];
    batches.forEach((batch, i) => { if (column <= 2 || this.allowed(batch, column - 1)) rows.push(i); });
    return rows;
  }

  unit(batch) { return between(this.anchored, (i) => this.anchors[i][1], batch); }

  // By context and column: seconds of every batch.
  readSteps(reader) {
    let before = null;
    return this.contexts.map((_, context) => {
      const now = [], moved = [];
      for (let column = 0; column <= this.depth + 1; column += 1) {
        const rows = this.rows(this.batches[context], column), read = reader.series(rows.length);
        moved.push(new Float64Array(this.batches[context].length).fill(NaN));
        rows.forEach((row, i) => { moved[column][row] = read[i] + (column === 1 || (before && column) ? moved[column - 1][row] : 0); });
        now.push(moved[column].map((value, row) => value + (before ? before[column][row] : 0)));
      }
      before = now;
      return now.map((column) => this.seconds(column, context));
    });
  }

  seconds(column, context) { return column.map((value, row) => value * QUANTUM * this.unit(this.batches[context][row])); }

  readDrafting(reader, depth) {
    let before = null;
    return this.contexts.map((_, context) => {
      const zeros = new Float64Array(this.batches[context].length), now = [zeros], moved = [zeros];
      for (let each = 1; each <= depth; each += 1) {
        const rows = this.rows(this.batches[context], each + 1), read = reader.series(rows.length);
        moved.push(new Float64Array(zeros.length).fill(NaN));
        rows.forEach((row, i) => { moved[each][row] = read[i] + (each > 1 ? 2 * moved[each - 1][row] - moved[each - 2][row] : 0); });
        now.push(moved[each].map((value, row) => value + (before ? before[each][row] : 0)));
      }
      before = now;
      return now.map((column) => this.seconds(column, context));
    });
  }

  // By context, column and knot, in units of COARSE; each context stores what the line between earlier ones misses.
  readCorrections(reader, columns) {
    const known = new Map(this.contexts.map((tokens) => [tokens, columns.map(() => new Float64Array(this.knots.length))]));
    for (const tokens of this.coarseContexts) {
      const contexts = [...known.keys()].sort((a, b) => a - b), stored = [];
      known.set(tokens, columns.map((column, i) => {
        const rows = this.rows(this.knots, column), read = reader.series(rows.length);
        stored.push(read.map((value, row) => value + (i ? stored[i - 1][row] : 0)));
        return stored[i].map((value, row) => value + between(contexts, (at) => known.get(contexts[at])[i][row], tokens, undefined, true));
      }));
    }
    return this.allContexts.map((tokens) => known.get(tokens));
  }

  readUniform(reader, depth) {
    return this.contexts.map(() => [...Array(depth)].map(() => reader.series(this.sampled.length).map((value) => value * MOVED)));
  }

  // By context and depth, at the sampled batches: seconds of one more position and its bottleneck; by depth: experts read.
  readOneMore(reader) {
    const depths = [...Array(this.depth + 1).keys()], sampled = () => reader.series(this.sampled.length);
    this.added = this.contexts.map(() => depths.map(() => ({
      seconds: sampled().map((value, i) => value * QUANTUM * this.unit(this.sampled[i])), bound: sampled(),
    })));
    this.distinct = this.experts === null ? null : depths.map(() => sampled().map((value) => value * EXPERTS));
  }

  oneMore(tokens, batch, depth) {
    const context = place(this.contexts, tokens), nearest = context[0] + Math.round(context[1]);
    const [low, share] = place(this.sampled, batch, Math.log);
    return {
      seconds: between(this.contexts, (i) => between(this.sampled, (j) => this.added[i][depth].seconds[j], batch, Math.log), tokens),
      bound: this.bounds[this.added[nearest][depth].bound[low + Math.round(share)]],
      experts: this.distinct && between(this.sampled, (j) => this.distinct[depth][j], batch, Math.log),
    };
  }

  // --- values at any context and batch ---

  // Seconds of one series, linear in the batch between knots and in the context, corrected between contexts.
  at(tokens, batch, series, corrections, column) {
    const value = mixed(this.contexts, (i) => atBatch(this.batches[i], series(i), batch), tokens);
    if (this.contexts.includes(tokens)) return value;
    const missed = (i) => between(this.knots, (j) => corrections[i][column][j], batch);
    return value + COARSE * this.unit(batch) * between(this.allContexts, missed, tokens, undefined, true);
  }

  step(tokens, batch, column) { return this.at(tokens, batch, (i) => this.steps[i][column], this.stepCorrections, column); }

  plain(tokens, batch) { return this.step(tokens, batch, 0); }

  verify(tokens, batch, depth) { return this.step(tokens, batch, depth + 1); }

  draft(drafter, tokens, batch, depth) {
    if (!depth || !this.drafting[drafter]) return 0;
    return this.at(tokens, batch, (i) => this.drafting[drafter][i][depth], this.draftCorrections[drafter], depth - 1);
  }

  round(drafter, tokens, batch, depth) { return this.verify(tokens, batch, depth) + this.draft(drafter, tokens, batch, depth); }

  // How far the logarithm of round over plain step moves under uniform routing; null where routing is known.
  uniformShift(drafter, tokens, batch, depth) {
    if (!this.uniform[drafter] || !depth) return null;
    return between(this.contexts, (i) => between(this.sampled, (j) => this.uniform[drafter][i][depth - 1][j], batch, Math.log), tokens);
  }

  // --- memory ---

  bytes(tokens, of) { return between(this.memoryContexts, of, tokens, undefined, true); }

  fits(drafter, tokens, depth) {
    const free = this.usable_bytes - this.weight_bytes - this.drafters[drafter].weight_bytes;
    return Math.max(Math.floor(free / Math.max(this.bytes(tokens, (i) => this.sequenceBytes[drafter][i][depth]), 1)), 0);
  }

  plainFits(tokens) {
    return Math.max(Math.floor((this.usable_bytes - this.weight_bytes) / Math.max(this.bytes(tokens, (i) => this.plainBytes[i]), 1)), 0);
  }
}

// The place of x among ascending knots: the knot before it and the share of the way to the next.
function place(knots, x, scale = (value) => value, beyond = false) {
  if (knots.length === 1) return [0, 0];
  let low = 0, high = knots.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle;
  }
  const share = (scale(x) - scale(knots[low])) / (scale(knots[high]) - scale(knots[low]));
  return [low, beyond ? share : Math.min(Math.max(share, 0), 1)];
}

function between(knots, value, x, scale, beyond) {
  const [low, share] = place(knots, x, scale, beyond);
  if (share === 0) return value(low);
  return share === 1 ? value(low + 1) : (1 - share) * value(low) + share * value(low + 1);
}

// Between contexts with every batch, and beyond their ends.
const mixed = (contexts, value, tokens) => between(contexts, value, tokens, undefined, true);

function atBatch(batches, series, batch) {
  if (batch <= ONE_BY_ONE && Number.isInteger(batch)) return series[batch - 1];
  return between(batches, (i) => series[i], batch, undefined, true);
}
