"""Speed of the hot paths as ratios, each against a plain form or a peer in the same run."""
