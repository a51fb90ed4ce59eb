"""Constants of llama.cpp's backends (lab/validation/llamacpp.py fits them and prints the error on left-out sources)."""

from __future__ import annotations

from specmargin.catalog.bundled import read_bundled
from specmargin.hardware.device import Device
from specmargin.prices.llamacpp.backends import Backend, Kernels
from specmargin.prices.llamacpp.model import LlamaCppPrices
from specmargin.prices.model import PriceModel
from specmargin.prices.roofline import Roofline
from specmargin.prices.verify_attention import EngineAttention, has_other_kernels

_FILE = "llamacpp_kernels.json"


def kernels_of(backend: Backend) -> Kernels:
    return Kernels(**read_bundled(_FILE)["backends"][backend])


def llamacpp_prices(device: Device, backend: Backend, kernels: Kernels | None = None) -> LlamaCppPrices:
    """With these constants, or the bundled ones."""
    inner: PriceModel = Roofline(device=device)
    if has_other_kernels("llamacpp", device):
        inner = EngineAttention(inner=inner, device=device, engine="llamacpp")
    return LlamaCppPrices(inner=inner, device=device, backend=backend, kernels=kernels or kernels_of(backend))
