"""One bucket through boto3: listing it and asking it, errors told in our words."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dflashctl.errors import ConfigError, HostUnreachable
from dflashctl.transport.s3 import S3Client, shown_endpoint
from dflashctl.transport.s3_errors import Gone, told

Ask = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Listed:
    key: str
    size_bytes: int
    etag: str
    """Without its quotes, which some stores forget in lists."""


@dataclass(frozen=True)
class Bucket:
    client: S3Client
    name: str

    @property
    def endpoint(self) -> str:
        return shown_endpoint(str(self.client.meta.endpoint_url))

    def ask(self, call: Ask, wanted: str, **arguments: Any) -> dict[str, Any]:
        """`wanted` continues the sentence "cannot ...". Raises as s3_errors.told."""
        with told(wanted, self.endpoint):
            return call(Bucket=self.name, **arguments)

    def ask_if_there(self, call: Ask, wanted: str, **arguments: Any) -> dict[str, Any] | None:
        """None: there is no such object or upload."""
        try:
            return self.ask(call, wanted, **arguments)
        except Gone:
            return None

    def read(self, key: str, wanted: str, *, etag: str, offset: int, length: int) -> bytes:
        """Of an object of that etag, at most so many bytes; none of an empty one."""
        if length == 0:
            return b""
        with told(wanted, self.endpoint):
            answer = self.client.get_object(
                Bucket=self.name, Key=key, Range=f"bytes={offset}-{offset + length - 1}", IfMatch=quoted(etag)
            )
            body = answer["Body"]
            try:
                return bytes(body.read(length))
            finally:
                body.close()

    def objects(self, prefix: str, wanted: str) -> Iterator[Listed]:
        """All whose keys begin so, in the store's order."""
        for page in self.pages("list_objects_v2", wanted, Prefix=prefix):
            for found in page.get("Contents", ()):
                yield Listed(str(found["Key"]), int(found["Size"]), self.etag_in(found, wanted))

    def etag_in(self, answer: dict[str, Any], wanted: str) -> str:
        return bare(self.field_in(answer, "ETag", wanted))

    def field_in(self, answer: dict[str, Any], name: str, wanted: str) -> str:
        """Raises HostUnreachable if it is not there, as in the answers of a server that is none of S3."""
        if not answer.get(name):
            raise HostUnreachable(
                f"cannot {wanted}: the answer of {self.endpoint} has no {name}",
                host=self.endpoint,
                hint="check that endpoint_url is one of S3",
            )
        return str(answer[name])

    def pages(self, operation: str, wanted: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        with told(wanted, self.endpoint):
            yield from self.client.get_paginator(operation).paginate(Bucket=self.name, **arguments)


def bare(etag: str) -> str:
    return etag if etag.startswith("W/") else etag.strip('"')


def quoted(etag: str) -> str:
    return etag if etag.startswith("W/") else f'"{etag}"'


def sha256_in(answer: dict[str, Any]) -> str | None:
    """What the object's own metadata say, if it is one; some stores change the case of names."""
    for name, value in answer.get("Metadata", {}).items():
        if name.lower() == "sha256" and is_sha256(value):
            return str(value)
    return None


def is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def md5_hex(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def composite_etag(md5s: list[str]) -> str | None:
    """ETag of an object that was put together of parts with these, in stores that do as S3 does.

    None: one of the parts' is no md5 (encrypted stores). Source: S3 user guide, "Checking object integrity".
    """
    try:
        joined = b"".join(bytes.fromhex(md5) for md5 in md5s)
    except ValueError:
        return None
    return f"{md5_hex(joined)}-{len(md5s)}"


def refuse_key(name: str, key: str, problem: str) -> ConfigError:
    return ConfigError(f"{name}: the key {key!r} cannot be a file: {problem}", hint="rename or remove that object")
