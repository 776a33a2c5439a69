"""Buckets of real servers, started once, and what the tests of s3:// read and write there."""

import hashlib
import itertools
import random

import pytest

from dflashctl.transport.s3_sink import S3Sink
from dflashctl.transport.s3_source import S3Source
from dflashctl.transport.stores import StoredFile
from s3_proxy import Proxy
from s3_servers import BUCKET, Server, binary

_PROGRAMS = {"strict": "weed", "sloppy": "rclone"}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_servers(tmp_path_factory):
    """Gives the store of a kind, and starts its server at the first call."""
    servers, stores = [], {}

    def store(kind: str):
        if binary(_PROGRAMS[kind]) is None:
            pytest.skip(f"no {_PROGRAMS[kind]} here: the dev extra has it for Linux on x86_64 and aarch64")
        if kind not in stores:
            servers.append(Server(kind, tmp_path_factory.mktemp(f"s3-{kind}")))
            stores[kind] = servers[-1].start()
        return stores[kind]

    yield store
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def s3_clients():
    """Gives one client a store, for what tests look at themselves."""
    made = {}

    def client(store):
        if store.kind not in made:
            made[store.kind] = store.client()
        return made[store.kind]

    yield client
    for one in made.values():
        one.close()


@pytest.fixture(params=["strict", "sloppy"])
def store(request, s3_servers):
    return s3_servers(request.param)


@pytest.fixture
def strict(s3_servers):
    return s3_servers("strict")


@pytest.fixture
def sloppy(s3_servers):
    return s3_servers("sloppy")


@pytest.fixture
def prefix():
    """Of this test's own objects, with letters that URLs and XML treat apart."""
    return f"tests/{next(_numbers)} a+b&%é"


@pytest.fixture
def proxy_before():
    """Makes proxies before a store, and stops them."""
    made = []

    def make(store, **changes):
        made.append(Proxy(store.endpoint, **changes).start())
        return made[-1]

    yield make
    for proxy in made:
        proxy.stop()


@pytest.fixture
def source(prefix):
    made = []

    def make(store, endpoint="", *, at=None, pauses=None, **changes):
        pause = [].append if pauses is None else pauses.append
        client = store.client(endpoint, **changes)
        made.append(S3Source(client, BUCKET, prefix if at is None else at, "s3://lab/here", pause=pause))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sink(prefix, tmp_path):
    made = []

    def make(store, endpoint="", *, at=None, bucket=BUCKET, **changes):
        client = store.client(endpoint, **changes)
        made.append(S3Sink(client, bucket, prefix if at is None else at, "s3://lab/there", state=tmp_path / "state"))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def objects(prefix, s3_clients):
    """Puts, reads and lists below the prefix by boto3 alone, so that what is tested does not vouch for itself."""

    class Objects:
        def __init__(self, store):
            self.client = s3_clients(store)

        def put(self, path, data, **more):
            return self.client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path}", Body=data, **more)

        def get(self, path):
            answer = self.client.get_object(Bucket=BUCKET, Key=f"{prefix}/{path}")
            with answer["Body"] as body:
                return body.read()

        def metadata(self, path):
            head = self.client.head_object(Bucket=BUCKET, Key=f"{prefix}/{path}")
            return {name.lower(): value for name, value in head["Metadata"].items()}

        def paths(self):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
            return sorted(
                found["Key"].removeprefix(f"{prefix}/") for page in pages for found in page.get("Contents", ())
            )

        def uploads(self):
            told = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{prefix}/")
            return [upload["Key"].removeprefix(f"{prefix}/") for upload in told.get("Uploads", ())]

    return Objects


@pytest.fixture
def noise():
    """Bytes of which no two ranges are alike, the same at each call with the same seed."""

    def make(size_bytes, seed=0):
        return random.Random(seed).randbytes(size_bytes)

    return make


@pytest.fixture
def send():
    """Writes files, path to bytes, through a sink; only the parts that it says are missing."""

    def make(sink, files, *, version="v1", known=False):
        sha256s = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        stored = tuple(
            StoredFile(path, len(data), version, sha256s[path] if known else None) for path, data in files.items()
        )
        there = sink.begin(stored)
        for file in stored:
            step = sink.part_bytes(file.size_bytes)
            for number in range(max(1, -(-file.size_bytes // step))):
                if number not in there[file.path]:
                    sink.write(file, number, files[file.path][number * step : (number + 1) * step])
        sink.finish(sha256s)
        return there

    return make
