"""Hosts and fabrics by name: what a GPU's steps wait for on the CPU, and its measured collectives.

A plan runs on the host `server`; a device names its fabric. What other hosts, memory and networks bring belongs here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.user import user_file, user_files
from specmargin.errors import CatalogError, nearest_names
from specmargin.hardware.device import Device
from specmargin.hardware.host import Host, host_of
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.links import fabric_book

SERVER = "server"


def bundled_hosts() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = read_bundled("hosts.toml")
    return tables


def bundled_fabrics() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = read_bundled("fabrics.toml")
    return tables


def find_host(name: str = SERVER) -> Host:
    file = user_file("host", name)
    if file is None:
        return host_of(name, bundled_hosts()[name])
    host, overrides = host_of(name, file.entry().model_dump()), name in bundled_hosts()
    return replace(
        host,
        source=file.sourced(host.source, overrides=overrides),
        launch_source=file.sourced(host.launch_source, overrides=overrides),
    )


def find_links(device: Device) -> LawBook | None:
    """Measured all-reduces of the fabric that the device names; None where tables or the datasheet have to do."""
    name = device.fabric.collectives
    if name is None:
        return None
    file = user_file("fabric", name)
    if file is not None:
        replaced = ", instead of the bundled entry" if name in bundled_fabrics() else ""
        return fabric_book(device, file.entry().model_dump(), file.shown + replaced)
    if name in bundled_fabrics():
        return fabric_book(device, bundled_fabrics()[name])
    names = (*bundled_fabrics(), *user_files("fabric"))
    known = f"{nearest_names(name, names)}; known: {', '.join(names)}"
    raise CatalogError(f"{device.name}: fabric {name!r} is unknown{known}; or leave it out")
