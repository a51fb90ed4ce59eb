"""Users' own measurements against predictions. That of bundled prices on public measurements is in `lab/validation`."""
