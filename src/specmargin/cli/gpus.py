"""`specmargin gpus`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.lookup import bundled_device, device_names
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import matching
from specmargin.hardware.device import Device

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_SHOWN = (Arithmetic.BF16, Arithmetic.FP8, Arithmetic.FP4)


@app.command()
def gpus(
    search: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    output: o.TableOption = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """List the bundled devices: datasheet memory, bandwidth, rates and links.

    Your own device is a TOML file with the same fields: specmargin plan MODEL --gpu my-gpu.toml
    """
    devices = [bundled_device(name) for name in matching("GPU", search, device_names())]
    o.check_table(output, force=force)
    o.write_rows(output, [_payload(device) for device in devices], force=force)
    if json:
        render.json_out({"schema": "specmargin.gpus/1", "gpus": [_payload(device) for device in devices]})
        return
    columns = [("name", "left"), ("device", "left"), ("memory", "right"), ("bandwidth", "right")]
    columns += [(f"{arithmetic} TFLOP/s", "right") for arithmetic in _SHOWN]
    shown = render.table("", [*columns, ("link", "right")])
    for device in devices:
        rates = [device.operations_per_second.get(arithmetic) for arithmetic in _SHOWN]
        shown.add_row(
            device.name,
            device.title,
            f"{device.memory_bytes / 1e9:.0f} GB",
            f"{device.bandwidth_bytes_per_second / 1e12:.2f} TB/s",
            *("–" if rate is None else f"{rate / 1e12:,.0f}" for rate in rates),
            f"{device.fabric.link_bytes_per_second / 1e9:.0f} GB/s",
        )
    out = render.console()
    out.print(shown)
    out.print("datasheet peaks, dense; link: per direction, between GPUs of a node", style="dim")


def _payload(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "title": device.title,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_second": device.bandwidth_bytes_per_second,
        "operations_per_second": {str(key): rate for key, rate in device.operations_per_second.items()},
        "link_bytes_per_second": device.fabric.link_bytes_per_second,
        "gpus_per_node": device.fabric.gpus_per_node,
        "source": str(device.source),
    }
