"""Engines: their configuration formats here; what runs inside one has a package of its own."""
