"""`specmargin gpus`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specmargin.architecture.precision import Arithmetic
from specmargin.catalog.lookup import bundled_device, device_names, device_template
from specmargin.cli import options as o
from specmargin.cli import render
from specmargin.errors import InputError, matching
from specmargin.files import write_text
from specmargin.hardware.device import Device

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_TEMPLATE = "rtx-4090"  # the figures of --template where no device is named
_SHOWN = (Arithmetic.BF16, Arithmetic.FP8, Arithmetic.FP4)


@app.command()
def gpus(
    search: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    template: Annotated[
        bool, typer.Option("--template", help="Print a documented device file, with the figures of SEARCH if given.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the table to FILE.csv or FILE.parquet, with --template the device file to FILE.toml.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = None,
    force: o.ForceOption = False,
    json: o.JsonOption = False,
) -> None:
    """List the bundled devices: datasheet memory, bandwidth, rates and links.

    Your own device is a TOML file: specmargin gpus h20 --template -o my-gpu.toml, edit it, then --gpu my-gpu.toml
    """
    if template:
        _write_template(search or _TEMPLATE, output, force=force, json=json)
        return
    devices = [bundled_device(name) for name in matching("GPU", search, device_names())]
    o.check_table(output, force=force)
    o.write_rows(output, [_payload(device) for device in devices], force=force)
    if json:
        render.json_out({"schema": "specmargin.gpus/1", "gpus": [_payload(device) for device in devices]})
        return
    columns = [("name", "left"), ("device", "left"), ("GB", "right"), ("TB/s", "right")]
    columns += [(str(arithmetic), "right") for arithmetic in _SHOWN]
    shown = render.table("", [*columns, ("link", "right")])
    for device in devices:
        rates = [device.operations_per_second.get(arithmetic) for arithmetic in _SHOWN]
        shown.add_row(
            device.name,
            device.title.removeprefix("NVIDIA "),
            f"{device.memory_bytes / 1e9:.0f}",
            f"{device.bandwidth_bytes_per_second / 1e12:.2f}",
            *("–" if rate is None else f"{rate / 1e12:,.0f}" for rate in rates),
            f"{device.fabric.link_bytes_per_second / 1e9:.0f}",
        )
    out = render.console()
    out.print(shown)
    out.print("datasheet peaks; bf16, fp8, fp4: dense TFLOP/s; link: GB/s per direction within a node", style="dim")


def _write_template(name: str, output: Path | None, *, force: bool, json: bool) -> None:
    if json:
        raise InputError("--json: a device file is TOML; leave out --json or --template")
    if output is None:
        print(device_template(name), end="")
        return
    if output.suffix != ".toml":
        raise InputError(f"{output}: a device file must end in .toml")
    write_text(output, device_template(name), force=force)


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
