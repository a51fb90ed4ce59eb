"""Prices from measured kernels: compact laws in the catalog, full tables from `aiconfigurator-core`."""
