import subprocess
import sys

import pytest

from dflashctl.config.hosts import HostsFile, S3Spec
from dflashctl.errors import ConfigError
from dflashctl.transport.s3 import open_s3, s3_client
from s3_servers import ENV, KEY, SECRET

SPEC = S3Spec(
    endpoint_url="https://s3.example.com",
    bucket="drafters",
    access_key_variable="LAB_S3_KEY",
    secret_key_variable="LAB_S3_SECRET",
)
HOSTS = HostsFile(s3={"cold": SPEC, "other": SPEC.model_copy(update={"bucket": "others"})})


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    file = tmp_path / "credentials"
    file.write_text(f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n[empty]\nregion = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_an_entry_is_found_by_its_name_and_its_bucket_is_used():
    assert open_s3("s3://cold/runs/a b%20+é/", HOSTS, ENV) == (SPEC, "drafters", "runs/a b%20+é/")


def test_an_entry_is_found_by_its_bucket_if_it_alone_has_that():
    spec, bucket, prefix = open_s3("s3://others", HOSTS, ENV)
    assert (spec.bucket, bucket, prefix) == ("others", "others", "")


def test_a_bucket_of_two_entries_is_refused_with_both_names():
    hosts = HostsFile(s3={"cold": SPEC, "warm": SPEC})
    with pytest.raises(ConfigError, match="2 entries") as caught:
        open_s3("s3://drafters/x", hosts, ENV)
    assert caught.value.hint == "say which: s3://cold, s3://warm"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        open_s3("s3://coold/x", HOSTS, ENV)
    assert caught.value.hint == "did you mean s3://cold?"


def test_without_a_section_it_is_told_what_to_write():
    with pytest.raises(ConfigError, match="no s3: section") as caught:
        open_s3("s3://cold/x", HostsFile(), ENV)
    assert "endpoint_url" in caught.value.hint


@pytest.mark.parametrize("key", ["/abs", "a//b", "../a", "a/../b", "a/./b", "a/b//", "nul\0"])
def test_a_key_that_is_no_path_is_refused(key):
    with pytest.raises(ConfigError, match=r"it (begins|has)"):
        open_s3(f"s3://cold/{key}", HOSTS, ENV)


def test_a_backslash_is_a_letter():
    assert open_s3("s3://cold/a\\..\\b", HOSTS, ENV).prefix == "a\\..\\b"


def test_a_missing_variable_is_named_and_the_other_ones_value_is_not():
    with pytest.raises(ConfigError) as caught:
        open_s3("s3://cold/x", HOSTS, {"LAB_S3_SECRET": SECRET})
    assert "LAB_S3_KEY" in caught.value.message and "LAB_S3_SECRET" not in caught.value.message
    assert SECRET not in repr(caught.value) + caught.value.hint


@pytest.mark.parametrize("profile", ["absent", "empty"])
def test_a_missing_or_empty_profile_is_named(profiles, profile):
    hosts = HostsFile(s3={"cold": SPEC.model_copy(update={"profile": profile})})
    with pytest.raises(ConfigError, match=f"profile {profile}"):
        open_s3("s3://cold/x", hosts, {})


def test_an_endpoint_that_is_no_url_is_named_without_its_password():
    spec = SPEC.model_copy(update={"endpoint_url": "ftp//ann:pa55word@nowhere"})
    with pytest.raises(ConfigError, match="endpoint_url") as caught:
        s3_client(spec, ENV)
    assert "pa55word" not in caught.value.message


def test_what_the_environment_says_of_aws_does_not_change_the_client(monkeypatch):
    for name, value in {"PROFILE": "nowhere", "ENDPOINT_URL": "http://x", "REGION": "mars-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    client = s3_client(SPEC, ENV)
    config = client.meta.config
    client.close()
    assert (client.meta.endpoint_url, client.meta.region_name) == ("https://s3.example.com", "us-east-1")
    assert config.request_checksum_calculation == config.response_checksum_validation == "when_required"


def test_boto3_is_loaded_when_a_client_is_made_and_not_before():
    code = (
        "import sys, dflashctl.transport.s3_source, dflashctl.transport.s3_sink\n"
        "print(*{m.split('.')[0] for m in sys.modules} & {'boto3', 'botocore', 's3transfer'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_keys_of_a_profile_reach_the_bucket(profiles, store, objects):
    objects(store).put("a", b"x")
    client = store.client(env={}, profile="lab", access_key_variable="NONE", secret_key_variable="NONE")
    assert client.list_objects_v2(Bucket="relay-lab")["KeyCount"] > 0
    client.close()


def test_path_style_names_the_bucket_in_the_request_line_and_virtual_in_the_host(store, proxy_before):
    proxy = proxy_before(store)
    client = store.client(proxy.endpoint)
    client.head_bucket(Bucket="relay-lab")
    client.close()
    assert proxy.requests[0].target == "/relay-lab"
    client = store.client(addressing="virtual", endpoint_url="http://s3.example.com:9")
    url = client.generate_presigned_url("head_bucket", Params={"Bucket": "relay-lab"})
    client.close()
    assert url.startswith("http://relay-lab.s3.example.com:9/")
