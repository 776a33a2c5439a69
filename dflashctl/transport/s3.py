"""s3://: which entry of hosts.yaml a URL means, and the client for it. For reading and writing see S3Source, S3Sink."""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from dflashctl.config.hosts import HostsFile, S3Spec
from dflashctl.config.schema import nearest
from dflashctl.errors import ConfigError
from dflashctl.transport.s3_keys import problem_of

SCHEME = "s3://"
NUM_CONNECTIONS = 20
CONNECT_S = 10
READ_S = 60
"""Of silence, not of a whole answer."""
NUM_ATTEMPTS = 8


class S3Client(Protocol):
    """What of a boto3 client for S3 is used."""

    meta: Any
    """`endpoint_url` is in it."""

    def get_paginator(self, operation_name: str) -> Any: ...
    def head_object(self, **arguments: Any) -> dict[str, Any]: ...
    def get_object(self, **arguments: Any) -> dict[str, Any]: ...
    def put_object(self, **arguments: Any) -> dict[str, Any]: ...
    def delete_object(self, **arguments: Any) -> dict[str, Any]: ...
    def create_multipart_upload(self, **arguments: Any) -> dict[str, Any]: ...
    def upload_part(self, **arguments: Any) -> dict[str, Any]: ...
    def complete_multipart_upload(self, **arguments: Any) -> dict[str, Any]: ...
    def abort_multipart_upload(self, **arguments: Any) -> dict[str, Any]: ...
    def close(self) -> None: ...


class S3Place(NamedTuple):
    spec: S3Spec
    bucket: str
    prefix: str
    """Of keys, without a slash in front; one at its end: a folder is meant, and never the object of that key."""


def open_s3(url: str, hosts: HostsFile, env: Mapping[str, str]) -> S3Place:
    """What `s3://NAME/key` means: NAME is an entry under `s3:`, or the bucket of exactly one entry. Asks nobody.

    Raises ConfigError: no such entry, a key that cannot be a path, credentials that are not there.
    """
    name, _, key = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not name:
        raise ConfigError(f"{url}: wanted s3://NAME/key, NAME an entry under s3: in hosts.yaml")
    problem = problem_of(key.removesuffix("/")) if key else None
    if problem:
        raise ConfigError(f"{url}: {problem}", hint="write the key as it is in the bucket, without / in front")
    spec = _entry(name, hosts)
    _check_credentials(spec, env)
    return S3Place(spec, spec.bucket, key)


def s3_client(spec: S3Spec, env: Mapping[str, str], *, max_attempts: int = NUM_ATTEMPTS) -> S3Client:
    """A client that threads may share; whoever is given it closes it. Asks nobody.

    `max_attempts` counts the first one; what is worth trying again (throttled, 5xx, no connection) boto3 decides.
    Raises ConfigError: no credentials, an endpoint that is no URL.
    """
    # Half a second, which commands that touch no bucket need not wait for.
    from botocore.config import Config

    _check_credentials(spec, env)
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": spec.addressing},
        # Else each request carries a CRC, as an aws-chunked trailer that many stores refuse, or keep inside the object.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": max_attempts},
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        max_pool_connections=NUM_CONNECTIONS,
        tcp_keepalive=True,
    )
    try:
        made = _session(spec, env).client(
            "s3", endpoint_url=spec.endpoint_url, region_name=spec.region, config=config, verify=None
        )
    except ValueError as error:
        raise ConfigError(
            f"the endpoint_url of bucket {spec.bucket} is no URL of a server: {shown_endpoint(spec.endpoint_url)}",
            hint="for example https://s3.example.com",
        ) from error
    return cast(S3Client, made)


def shown_endpoint(url: str) -> str:
    """Host and port: a user and a password that may stand before them are for nobody to read."""
    return (urlsplit(url).netloc or url).rpartition("@")[2]


def _entry(name: str, hosts: HostsFile) -> S3Spec:
    if name in hosts.s3:
        return hosts.s3[name]
    with_bucket = [entry for entry, spec in hosts.s3.items() if spec.bucket == name]
    if len(with_bucket) == 1:
        return hosts.s3[with_bucket[0]]
    if with_bucket:
        raise ConfigError(
            f"s3://{name}: {len(with_bucket)} entries under s3: in hosts.yaml have the bucket {name}",
            hint=f"say which: {_listed(f's3://{entry}' for entry in with_bucket)}",
        )
    if not hosts.s3:
        raise ConfigError(
            f"s3://{name}: hosts.yaml has no s3: section",
            hint=f"write s3: {{{name}: {{endpoint_url: https://..., bucket: ...}}}} there",
        )
    names = (*hosts.s3, *(spec.bucket for spec in hosts.s3.values()))
    near = nearest(name, names)
    raise ConfigError(
        f"s3://{name}: neither an entry under s3: in hosts.yaml nor the bucket of one",
        hint=f"did you mean s3://{near}?" if near else f"known there: {_listed(hosts.s3)}",
    )


def _check_credentials(spec: S3Spec, env: Mapping[str, str]) -> None:
    if spec.profile is not None:
        _session(spec, env)
        return
    missing = [name for name in (spec.access_key_variable, spec.secret_key_variable) if not env.get(name)]
    if missing:
        raise ConfigError(
            f"bucket {spec.bucket} needs the keys in {_listed(missing)}, not set in the environment here",
            hint=f"export {missing[0]}=..., or name a profile of the credentials file in hosts.yaml",
        )


def _session(spec: S3Spec, env: Mapping[str, str]) -> Any:
    import boto3
    import botocore.session
    from botocore.exceptions import BotoCoreError

    if spec.profile is None:
        # What ~/.aws or AWS_PROFILE say is of other buckets.
        core = botocore.session.Session(session_vars={"profile": (None, None, None, None)})
        core.register_component("data_loader", _loader())
        core.set_config_variable("config_file", os.devnull)
        core.set_config_variable("credentials_file", os.devnull)
        is_usual = spec.access_key_variable == "AWS_ACCESS_KEY_ID"
        token = env.get("AWS_SESSION_TOKEN") if is_usual else None
        core.set_credentials(env[spec.access_key_variable], env[spec.secret_key_variable], token)
        return boto3.session.Session(botocore_session=core)
    core = botocore.session.Session(profile=spec.profile)
    try:
        found = core.get_credentials()
    except BotoCoreError as error:
        raise ConfigError(
            f"bucket {spec.bucket} needs the profile {spec.profile}, which the files of AWS do not have as it should be"
            f" ({type(error).__name__})",
            hint=f"aws configure --profile {spec.profile}, or take profile out of that entry in hosts.yaml",
        ) from None
    if found is None:
        raise ConfigError(
            f"bucket {spec.bucket} needs the profile {spec.profile}, in which there are no keys",
            hint=f"aws configure --profile {spec.profile}",
        )
    return boto3.session.Session(botocore_session=core)


@cache
def _loader() -> Any:
    """What boto3 knows of S3: read once, a tenth of a second."""
    import botocore.loaders

    return botocore.loaders.create_loader()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
