// Tables of numbers as show/site/codes.py writes them, and interpolation.

export async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }

  // Seven bits per byte, the sign in the lowest bit.
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

  // A row per context; a row has a series per column.
  table(contexts, columns) {
    const rows = new Map();
    for (const tokens of contexts) {
      const known = [...rows.keys()].sort((a, b) => a - b), row = [], missed = [];
      for (let column = 0; column < columns; column += 1) {
        const [left, before] = [missed[column - 1], missed[column - 2]], code = this.number(), values = this.series(code % 4, this.number());
        const expected = (i) => (code < 4 ? 0 : code < 8 ? left[i] : 2 * left[i] - before[i]);
        missed.push(values.map((value, i) => value + expected(i)));
        row.push(!known.length ? missed[column]
          : missed[column].map((value, i) => value + Math.floor(between(known, (at) => rows.get(known[at])[column][i], tokens) + 0.5)));
      }
      rows.set(tokens, row);
    }
    return rows;
  }

  series(order, length) {
    const values = new Float64Array(length).map(() => this.number());
    for (let each = 0; each < order; each += 1) for (let i = 1; i < length; i += 1) values[i] += values[i - 1];
    return values;
  }
}

// The place of x among ascending knots: the knot before it and the share of the way to the next.
export function place(knots, x, { scale = (value) => value, outside = false } = {}) {
  if (knots.length === 1) return [0, 0];
  let low = 0, high = knots.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle;
  }
  const share = (scale(x) - scale(knots[low])) / (scale(knots[high]) - scale(knots[low]));
  return [low, outside ? share : Math.min(Math.max(share, 0), 1)];
}

export function between(knots, value, x, how) {
  const [low, share] = place(knots, x, how);
  if (share === 0) return value(low);
  return share === 1 ? value(low + 1) : (1 - share) * value(low) + share * value(low + 1);
}
