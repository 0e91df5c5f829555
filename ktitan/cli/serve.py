"""`ktitan serve`: an OpenAI-compatible server for one model, and its web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ktitan.env import API_KEY
from ktitan.local_chat.arguments import (
    MODEL_HELP,
    Budget,
    Cache,
    ChunkSize,
    Context,
    Device,
    GgufPath,
    Kv,
    Plugin,
    Profile,
    PromptCacheOff,
    Ram,
    RecordTrace,
    Rules,
    Threads,
    VerifyWeights,
    Vram,
    budget_text,
    recorded,
)
from ktitan.local_chat.command import Dtype
from ktitan.local_chat.known_names import takes_known_names
from ktitan.local_chat.plugin import import_plugin

__all__ = ["serve", "start_server"]


@takes_known_names
def serve(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
    model_path: Annotated[str | None, typer.Option("--model-path", "--model", "-m", help="MODEL as an option.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Key that clients must send; may be given again. Also KTITAN_API_KEY.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="No key, although others can reach the address.")] = False,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Origin whose pages may call; may be given again.")
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more are told to come back.")] = 32,
    max_body: Annotated[str, typer.Option(help="Largest request, e.g. 10MB.")] = "10MB",
    chunk_size: ChunkSize = None,
    threads: Threads = None,
    shutdown_seconds: Annotated[
        float, typer.Option(min=0, help="After Ctrl-C or SIGTERM: time for the answer that runs.")
    ] = 10.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line on stderr for each request.")] = False,
    gguf_path: GgufPath = None,
    rules: Rules = "auto",
    budget: Budget = None,
    vram: Vram = None,
    ram: Ram = None,
    cache: Cache = None,
    kv: Kv = None,
    profile: Profile = None,
    record_trace: RecordTrace = None,
    device: Device = None,
    context: Context = None,
    no_prompt_cache: PromptCacheOff = False,
    dtype: Annotated[Dtype, typer.Option(help="auto: the checkpoint's, where the device is good at it.")] = Dtype.auto,
    verify_weights: VerifyWeights = False,
    plugin: Plugin = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text on stderr.")] = False,
) -> None:
    """Serve MODEL over HTTP as OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models.

    Also /health, /metrics and /tiers, and a page for people at /. The first Ctrl-C or SIGTERM lets the answer that runs
    finish within --shutdown-seconds; the second one ends at once.
    """
    if (model is None) == (model_path is None):
        raise typer.BadParameter("give MODEL once: as an argument, or as --model-path")
    loading: dict[str, Any] = {"gguf_path": gguf_path, "rules": rules, "device": device, "dtype": dtype.value}
    if verify_weights:
        loading["verify_weights"] = True
    start_server(
        model or model_path or "",
        load={
            **loading,
            "budget": budget_text(budget, vram, ram),
            "context": context,
            "cache": cache,
            "kv": kv,
            "profile": profile,
        },
        max_body=max_body,
        plugin=plugin,
        threads=threads,
        no_color=no_color,
        record_trace=record_trace,
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        no_auth=no_auth,
        cors_origins=tuple(cors or ()),
        queue_limit=queue,
        chunk_tokens=chunk_size,
        shutdown_seconds=shutdown_seconds,
        context_tokens=context,
        access_log=access_log,
        prompt_cache=not no_prompt_cache,
    )


def start_server(
    model: str,
    *,
    load: dict[str, Any],
    max_body: str,
    plugin: str | None,
    threads: int | None,
    no_color: bool,
    record_trace: Path | None = None,
    **options: Any,
) -> None:
    """Bind, load and serve until a signal.

    Args:
        model: MODEL as the user called it.
        load: keyword arguments of `ktitan.api.load`.
        max_body: size of the largest request.
        plugin: module to import first.
        threads: threads on the CPU; None leaves them.
        no_color: plain text on stderr.
        record_trace: file for what the routers chose, written once no answer runs; None: not recorded.
        options: fields of `ktitan.server.options.ServerOptions`; without `api_keys` those of KTITAN_API_KEY are taken.

    Raises:
        KtitanError: the options are not safe together, the port is in use, or as `ktitan.api.load`.
    """
    from rich.console import Console

    from ktitan.local_chat.loading import load_model, save_profile
    from ktitan.local_chat.options import ChatOptions
    from ktitan.server.listen import bind, url_of
    from ktitan.server.options import ServerOptions
    from ktitan.tiers import parse_bytes

    keys = options.pop("api_keys", ()) or tuple(filter(None, API_KEY.read().split(",")))
    settings = ServerOptions(**options, api_keys=keys, body_limit_bytes=parse_bytes(max_body))
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, no_color=no_color or None)
    import_plugin(plugin)
    with bind(settings.host, settings.port) as listener:
        chosen = ChatOptions(model=model, load=load, threads=threads, no_color=no_color)
        loaded, tokenizer = load_model(chosen, console)

        from ktitan.server.run import serve_model

        url = url_of(listener)
        with recorded(loaded, record_trace):
            serve_model(
                loaded,
                tokenizer,
                model,
                settings,
                listener,
                ready=lambda: console.print(f"serving at {url}/v1 (Ctrl-C ends)"),
                ended=lambda: save_profile(loaded, chosen),
            )
