// Ascending knots of a grid.

// The place of x among them: the knot before it and the share of the way to the next; beyond the ends too.
export function place(knots, x) {
  let low = 0, high = knots.length - 1;
  if (low === high) return [0, 0];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= x) low = middle; else high = middle;
  }
  return [low, (x - knots[low]) / (knots[high] - knots[low])];
}

// The knots that x lies between, or the one that it is.
export function around(knots, x) {
  const [low, share] = place(knots, x);
  return [...(share < 1 ? [knots[low]] : []), ...(share > 0 ? [knots[low + 1]] : [])];
}
