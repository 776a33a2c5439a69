"""A relay that has a store at one end: S3 at either, a Hugging Face repository as a source."""

import os
from functools import partial
from typing import TYPE_CHECKING

from dflashctl.errors import ConfigError
from dflashctl.operations.relay.from_store import down
from dflashctl.operations.relay.progress import Progress
from dflashctl.operations.relay.stores import Brought
from dflashctl.operations.relay.to_store import up
from dflashctl.stages.relay.path import Location
from dflashctl.transport.stores import FileSink, FileSource
from dflashctl.views.relay import moved_text, plain

if TYPE_CHECKING:
    from dflashctl.cli.run_relay import Relay
    from dflashctl.transport.s3 import S3Place


STORE_PROOF = "sizes, checksums and samples that the store tells of it are right"


def relay_store(relay: "Relay", source: Location, dest: Location, *, replace: bool, is_dry_run: bool) -> None:
    """Raises what a relay raises."""
    if source.is_store:
        _from_store(relay, source, dest, replace=replace, is_dry_run=is_dry_run)
    else:
        _to_store(relay, source, dest, replace=replace, is_dry_run=is_dry_run)


def _from_store(relay: "Relay", source: Location, dest: Location, *, replace: bool, is_dry_run: bool) -> None:
    path, progress = dest.path, Progress()
    if path.endswith("/"):
        path += _name(source)
    relay.gate(dest.host, replace)
    store = _source(relay, source.path)
    try:
        if is_dry_run:
            _show(relay, source, f"{dest.host}:{path}", [(file.path, file.size_bytes) for file in store.files()])
            return
        end = relay.end(dest.host)
        relay.remember_path(source, dest, replace=replace)
        about = {"kind": "path", "from": store.name}
        brought = relay.carried(
            str(source),
            ("the store", dest.host),
            progress,
            lambda: down(store, end, path, progress, relay.out.say, replace=replace, about=about),
        )
    finally:
        store.close()
    _tell(relay, str(source), dest.host, path, brought)


def _to_store(relay: "Relay", source: Location, dest: Location, *, replace: bool, is_dry_run: bool) -> None:
    path, progress = dest.path, Progress()
    if path.endswith("/"):
        path += _name(source)
    place = s3_place(relay, path)
    if is_dry_run:
        _show(relay, source, path, [])
        return
    end = relay.end(source.host)
    relay.remember_path(source, dest, replace=replace)
    brought = relay.carried(
        str(source),
        (source.host, "the store"),
        progress,
        lambda: up(end, source.path, partial(_sink, place, path), progress, relay.out.say, replace=replace),
    )
    _tell(relay, str(source), "the store", path, brought)


def _name(source: Location) -> str:
    """Its own, for a folder that it goes into. Raises ConfigError."""
    name = source.path.rstrip("/").rpartition("/")[2]
    if source.path.startswith("hf://"):
        name = name.partition("@")[0]
    if name in ("", "~", ".", ".."):
        raise ConfigError(f"{source} has no name of its own", hint="give the destination's whole path")
    return name


def _show(relay: "Relay", source: Location, dest: str, files: list[tuple[str, int]]) -> None:
    lines = [f"{source} -> {dest}", *(f"  {plain(path)}  {size}" for path, size in files)]
    relay.out.result({"source": str(source), "dest": dest, "files": files}, "\n".join(lines))


def _tell(relay: "Relay", what: str, place: str, dest: str, brought: Brought | None) -> None:
    if brought is None:
        said = f"{what} is on {place} already, and the same: nothing was sent"
        relay.out.result({"is_there": True, "dest": dest, "sent_bytes": 0}, said)
        return
    text = moved_text(what, place, brought.moved, *([STORE_PROOF] if dest.startswith("s3://") else []))
    if brought.num_unproven:
        text += f"; of {brought.num_unproven} files the store tells no sha256: they are as they were read from it"
    relay.out.result({"is_there": False, **brought.moved.__dict__, "num_unproven": brought.num_unproven}, text)


def _source(relay: "Relay", url: str) -> FileSource:
    if url.startswith("hf://"):
        from dflashctl.transport.hub import open_hub

        return open_hub(url, os.environ)
    from dflashctl.transport.s3 import open_s3, s3_client
    from dflashctl.transport.s3_source import S3Source

    place = open_s3(url, relay.inventory.content, os.environ)
    return S3Source(s3_client(place.spec, os.environ), place.bucket, place.prefix, url)


def s3_place(relay: "Relay", url: str) -> "S3Place":
    """Raises ConfigError."""
    if not url.startswith("s3://"):
        raise ConfigError("a Hugging Face repository can only be read from here", hint="hf upload")
    from dflashctl.transport.s3 import open_s3

    return open_s3(url, relay.inventory.content, os.environ)


def _sink(place: "S3Place", url: str, is_file: bool) -> tuple[FileSink, str]:
    from dflashctl.transport.s3 import s3_client
    from dflashctl.transport.s3_sink import S3Sink

    folder, _, name = place.prefix.rpartition("/")
    prefix = folder if is_file else place.prefix
    return S3Sink(s3_client(place.spec, os.environ), place.bucket, prefix, url), name
