"""The static site: grids of prices written by Python, from which a browser makes plans without a server."""
