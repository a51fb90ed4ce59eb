"""Devices and fabrics, and how a model is spread over them."""
