"""Entries with their sources, bundled and the user's: models, devices, drafters, engine times, fabrics, hosts."""
