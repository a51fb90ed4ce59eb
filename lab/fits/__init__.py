"""Fits that write the catalog: laws, engine times, modules, routing curves, and errors of speed-ups."""
