"""The compiled core of every policy: prices, the gate, what is learned, and the decisions."""
