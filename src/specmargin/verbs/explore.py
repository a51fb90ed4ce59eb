"""Open the web page: move the controls and see where speculation pays. Everything stays on this machine.

Examples:

  specmargin explore

  specmargin explore ./my-model/config.json --gpu b200
"""

from __future__ import annotations

import errno
import secrets
import socket
import webbrowser
from json import dumps
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from pydantic import Field

from specmargin._version import __version__
from specmargin.answers.outputs_schema import Outputs
from specmargin.answers.request_schema import Request, Shown
from specmargin.answers.verb import verb
from specmargin.errors import InputError

if TYPE_CHECKING:
    from specmargin.show.explorer.uploads import Uploads


class ExploreRequest(Request):
    model: Annotated[
        str | None,
        Field(description="Start with this model: a bundled name, a Hugging Face id or a config.json of your own."),
        Shown(argument=True),
    ] = None
    gpu: Annotated[str | None, Field(description="Start with this bundled device."), Shown(metavar="GPU")] = None
    host: Annotated[
        str,
        Field(description="Address to listen on. Anything but loopback needs the printed token."),
        Shown(metavar="ADDRESS"),
    ] = "127.0.0.1"
    port: Annotated[
        int, Field(ge=0, le=65535, description="Port to listen on; 0 picks a free one."), Shown(metavar="PORT")
    ] = 8642
    browser: Annotated[
        bool, Field(description="Open the page in a browser."), Shown(options=("--browser/--no-browser",))
    ] = True


@verb(ExploreRequest, outputs=Outputs)
def explore(request: ExploreRequest, outputs: Outputs | None = None) -> None:
    import uvicorn

    from specmargin.show.explorer.guard import allowed_hosts, is_loopback
    from specmargin.show.explorer.server import make_app
    from specmargin.show.explorer.uploads import Uploads

    uploads, host = Uploads(), request.host
    start = _start_query(request.model, request.gpu, uploads)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    listening = _listen(host, request.port)
    address = _address(host, listening.getsockname()[1], start | ({} if token is None else {"token": token}))
    _announce(address, host, public=token is not None, as_json=outputs is not None and outputs.as_json)
    if request.browser:
        Timer(0.4, webbrowser.open, [address]).start()
    config = uvicorn.Config(make_app(hosts=allowed_hosts(host), token=token, uploads=uploads), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


def _announce(address: str, host: str, *, public: bool, as_json: bool) -> None:
    """Before the server runs: a program reads the address and goes on."""
    if as_json:
        print(dumps({"schema": "specmargin.explore/1", "version": __version__, "url": address}), flush=True)
        return
    if public:
        print(
            f"Warning: {host} is reachable from other machines over unencrypted HTTP. Anybody with this address can "
            "use the page."
        )
    print(address, flush=True)
    print("Press Ctrl-C to stop.", flush=True)


def _start_query(model: str | None, gpu: str | None, uploads: Uploads) -> dict[str, str]:
    """The query that the page opens with, validated before the server starts."""
    from specmargin.catalog.lookup import find_device, find_model, model_names, named_model

    query: dict[str, str] = {}
    if gpu is not None:
        query["gpu"] = find_device(gpu).name
    if model is not None and model.lower() in model_names():
        query["model"] = model.lower()
    elif model is not None:
        found = find_model(model)
        path = Path(model).expanduser()
        file = path / "config.json" if path.is_dir() else path
        if found.name in model_names() and found.groups == named_model(found.name).groups:
            return query | {"model": found.name}  # an id of the same layers
        if not file.is_file():
            return query | {"model": model}  # an id of a variant, or in the local hub cache
        name = file.resolve().parent.name if file.name == "config.json" else file.name
        query["model"] = f"upload:{uploads.add('config', name, file.read_bytes()).id}"
    return query


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # before the address is printed, so that an early client is not refused
    except OSError as error:
        listening.close()
        hint = (
            "; try --port 0" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "; give an address of this machine"
        )
        raise InputError(f"--host {host} --port {port}: {(error.strerror or str(error)).lower()}{hint}") from None
    return listening


def _address(host: str, port: int, query: dict[str, str]) -> str:
    name = "localhost" if host in ("127.0.0.1", "::1", "localhost") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?{urlencode(query)}" if query else "")
