"""Hosts and fabrics by name: what a GPU's steps wait for on the CPU, and its measured collectives.

A plan runs on the host `server`; a device names its fabric. What other hosts, memory and networks bring belongs here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from specmargin.catalog.bundled import read_bundled
from specmargin.catalog.user import user_file, user_files
from specmargin.errors import CatalogError, InputError, ParallelismError, nearest_names
from specmargin.hardware.device import Device
from specmargin.hardware.host import Host, host_of
from specmargin.prices.kernels.book import LawBook
from specmargin.prices.kernels.links import fabric_book
from specmargin.sources import Source, SourceKind

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


def network_names() -> list[str]:
    """Fabrics between nodes, bundled and the user's. A broken file of the user's is refused where it is named."""
    tables = bundled_fabrics()
    for name in user_files("fabric"):
        file = user_file("fabric", name)
        with suppress(InputError):
            tables = tables | ({} if file is None else {name: file.entry().model_dump()})
    return [name for name, table in tables.items() if table.get("network_bytes_per_second")]


def over_nodes(device: Device, gpus: int, nodes: int | None, name: str | None) -> Device:
    """The device in so many nodes, with the network between them that was named."""
    fabric = device.fabric
    if nodes is not None and (gpus % nodes or gpus // nodes > fabric.gpus_per_node):
        fewest = -(-gpus // fabric.gpus_per_node)
        raise ParallelismError(
            f"--nodes {nodes}: {gpus} GPUs do not divide over nodes of up to {fabric.gpus_per_node}; "
            f"use --nodes {fewest}"
        )
    if nodes is not None:
        fabric = replace(fabric, gpus_per_node=gpus // nodes)
    if name is not None:
        if gpus <= fabric.gpus_per_node:
            raise ParallelismError(f"--fabric {name}: {gpus} GPUs are one node of {device.title}; add --nodes N")
        table, source = _network(name)
        fabric = replace(
            fabric,
            network_bytes_per_second=table["network_bytes_per_second"],
            network_latency_seconds=table["network_latency_seconds"],
            network=source,
        )
    return device if fabric is device.fabric else replace(device, fabric=fabric)


def _network(name: str) -> tuple[dict[str, Any], Source]:
    file = user_file("fabric", name)
    table = file.entry().model_dump() if file is not None else bundled_fabrics().get(name, {})
    if not table.get("network_bytes_per_second"):
        names = network_names()
        raise CatalogError(
            f"--fabric {name}: not a network between nodes{nearest_names(name, names)}; known: {', '.join(names)}"
        )
    where = f" (yours: {file.shown})" if file is not None else ""
    detail = f"{table['title']}{where}: {table['source']}"
    return table, Source(kind=SourceKind.PUBLISHED, detail=detail, spread=table["spread"])


def find_links(device: Device) -> LawBook | None:
    """Measured all-reduces of the fabric that the device names; None where tables or the datasheet have to do."""
    name = device.fabric.collectives
    if name is None:
        return None
    if name in network_names():
        raise CatalogError(f"{device.name}: fabric {name!r} is a network between nodes; name it with --fabric")
    file = user_file("fabric", name)
    if file is not None:
        replaced = ", instead of the bundled entry" if name in bundled_fabrics() else ""
        return fabric_book(device, file.entry().model_dump(), file.shown + replaced)
    if name in bundled_fabrics():
        return fabric_book(device, bundled_fabrics()[name])
    names = (*bundled_fabrics(), *user_files("fabric"))
    known = f"{nearest_names(name, names)}; known: {', '.join(names)}"
    raise CatalogError(f"{device.name}: fabric {name!r} is unknown{known}; or leave it out")
