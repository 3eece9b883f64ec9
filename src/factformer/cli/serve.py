"""The command that puts a trained surrogate at others' service: serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from factformer.cli._answers import Device, Devices, Domain, Json, Plugin, number, print_json, tell

if TYPE_CHECKING:
    from factformer.serve.launch import Started


def serve(
    bundle: Annotated[str, typer.Argument(help="Folder of a bundle or run, or the name of a bundle in the zoo.")],
    host: Annotated[str, typer.Option(help="Address to listen on; others than this computer's need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, number("Port to listen on; 0 takes a free one.", least=0, most=65535)] = 8000,
    token: Annotated[
        str | None, typer.Option(help="Clients must know it.", envvar="FACTFORMER_TOKEN", show_envvar=True)
    ] = None,
    frames: Annotated[int, number("Frames that one request may ask for.")] = 1000,
    megabytes: Annotated[int, number("Megabytes that one request may hold.", most=10**4)] = 64,
    seconds: Annotated[int, number("Seconds that one request may take.", most=10**5)] = 60,
    running: Annotated[int, number("Predictions in progress at once.", most=1000)] = 4,
    waiting: Annotated[int, number("Requests that may wait beyond these.", least=0, most=1000)] = 12,
    device: Device = None,
    domain: Domain = 1,
    devices: Devices = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Predictions over HTTP, and a page to play with the surrogate in a browser.

    Ends with SIGTERM or Ctrl-C, after what is being predicted then. How to ask is at /docs.

    Example: factformer serve runs/demo --port 8000
    """
    from factformer.cli._processes import several_processes
    from factformer.serve.launch import serve as serve_bundle
    from factformer.serve.limits import MEGABYTE, Limits
    from factformer.training.cut_predictions import Sharing

    def started(server: Started) -> None:
        if json:
            print_json({"url": server.url, "port": server.port, "seconds_per_frame": server.seconds_per_frame})
        else:
            tell(f"serving {bundle} at {server.url}, one frame in {1000 * server.seconds_per_frame:.3g} ms")
            if token is not None:
                tell(f"in a browser: {server.url}?token=TOKEN, with the token in place")
            tell("press Ctrl-C to stop")

    serve_bundle(
        bundle,
        host=host,
        port=port,
        token=token,
        limits=Limits(
            body_bytes=megabytes * MEGABYTE, frames=frames, seconds=seconds, running=running, waiting=waiting
        ),
        device=device,
        sharing=Sharing(domain, devices, device, several_processes),
        started=started,
    )
