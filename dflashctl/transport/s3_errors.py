"""What S3 and boto3 say when something is wrong, in our words: the one place that knows their codes.

Of what a server writes only the code is repeated: its text may hold keys, or the request with its signature.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dflashctl.errors import ArtifactError, ConfigError, DflashctlError, HostUnreachable
from dflashctl.transport.stores import SourceChanged


class Gone(ArtifactError):
    """There is no such object, or no such upload."""


@dataclass(frozen=True)
class _Meaning:
    codes: tuple[str, ...]
    kind: type[ArtifactError | ConfigError | HostUnreachable]
    reason: str
    """`{at}` is the endpoint."""
    hint: str


_ENTRY = "that entry in hosts.yaml"
_MEANINGS = (
    _Meaning(("NoSuchBucket",), ConfigError, "{at} has no such bucket", f"check bucket and endpoint_url of {_ENTRY}"),
    _Meaning(
        ("InvalidAccessKeyId",),
        ConfigError,
        "{at} does not know the access key",
        f"check profile, or the values of the two variables, of {_ENTRY}",
    ),
    _Meaning(
        ("SignatureDoesNotMatch",),
        ConfigError,
        "for {at} the secret key does not belong to the access key",
        f"check profile, or the values of the two variables, of {_ENTRY}",
    ),
    _Meaning(
        ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
        ConfigError,
        "{at} does not take the session token, or not any more",
        "log in again where it comes from",
    ),
    _Meaning(
        ("RequestTimeTooSkewed", "RequestExpired"),
        ConfigError,
        "this machine's clock and that of {at} are too far apart",
        "set the clock, for example by NTP",
    ),
    _Meaning(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect", "301", "307"),
        ConfigError,
        "{at} says that the bucket is elsewhere",
        f"check region and endpoint_url of {_ENTRY}",
    ),
    _Meaning(
        ("PreconditionFailed", "InvalidRange", "ConditionalRequestConflict", "412", "416"),
        SourceChanged,
        "it has changed since it was listed",
        "run the command again",
    ),
    _Meaning(("NoSuchUpload",), Gone, "{at} has dropped the upload that was begun", "run the command again"),
    _Meaning(("NoSuchKey", "NotFound", "404"), Gone, "it is not there, or not any more", "run the command again"),
    _Meaning(
        ("AccessDenied", "AllAccessDisabled", "AccountProblem", "UnauthorizedAccess", "401", "403"),
        ArtifactError,
        "{at} denies it",
        "check what these keys may do, and that they are the right ones",
    ),
    _Meaning(
        ("InsufficientStorage", "XMinioStorageFull", "QuotaExceeded", "InsufficientCapacity", "507"),
        ArtifactError,
        "{at} has no room left",
        "make room there, then run the command again; it goes on where it stopped",
    ),
    _Meaning(
        ("SlowDown", "ServiceUnavailable", "TooManyRequests", "Throttling", "RequestLimitExceeded", "503", "429"),
        HostUnreachable,
        "{at} asks again and again to slow down",
        "run the command again later; it goes on where it stopped",
    ),
    _Meaning(
        ("BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"),
        ArtifactError,
        "the bytes that reached {at} are not those that were sent",
        "run the command again; if it happens again, suspect what is between",
    ),
    _Meaning(
        ("InvalidPart", "InvalidPartOrder"),
        ArtifactError,
        "{at} does not have the parts any more that it took",
        "run the command again",
    ),
    _Meaning(
        ("InvalidObjectState",), ArtifactError, "it is archived, and cannot be read as it is", "restore it in the store"
    ),
    _Meaning(("EntityTooLarge",), ArtifactError, "{at} takes no object of that size", "ask who runs it for its limit"),
)


@contextmanager
def told(wanted: str, endpoint: str) -> Iterator[None]:
    """Raises errors of boto3 as ours: `wanted` continues "cannot", `endpoint` is host and port.

    `from None`, since theirs may quote what the server said.
    """
    from botocore import exceptions as boto

    try:
        yield
    except boto.ClientError as error:
        raise _of_answer(error, wanted, endpoint) from None
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
        raise ConfigError(
            f"cannot {wanted}: there are no keys for {endpoint} ({type(error).__name__})",
            hint="check profile, or the two variables, of that entry in hosts.yaml",
        ) from None
    except boto.ParamValidationError:
        raise ConfigError(f"cannot {wanted}: boto3 takes no such bucket or key") from None
    except boto.BotoCoreError as error:
        reason, hint = _why_no_answer(error)
        raise HostUnreachable(f"cannot {wanted}: {endpoint} {reason}", host=endpoint, hint=hint) from None


def _code_of(answer: dict[str, Any]) -> str:
    """The error's code; that of HTTP where there is no other, as in answers to HEAD."""
    return str(answer.get("Error", {}).get("Code") or status_of(answer))


def status_of(answer: dict[str, Any]) -> int:
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _of_answer(error: Any, wanted: str, endpoint: str) -> DflashctlError:
    code, status = _code_of(error.response), status_of(error.response)
    found = next((meaning for meaning in _MEANINGS if code in meaning.codes), None)
    if found is None and status >= 500:
        hint = "see its own log: a full disk looks like this, too; run again, the command goes on where it stopped"
        found = _Meaning((), HostUnreachable, "{at} failed at it again and again", hint)
    if found is None:
        found = _Meaning((), ArtifactError, f"{{at}} refuses it (HTTP {status})", "")
    message = f"cannot {wanted}: {found.reason.format(at=endpoint)} ({_as_word(code)})"
    if issubclass(found.kind, HostUnreachable):
        return found.kind(message, host=endpoint, hint=found.hint)
    return found.kind(message, hint=found.hint)


def _as_word(code: str) -> str:
    """Codes are words, or numbers of HTTP: whatever else stands there is not repeated."""
    return code if code.isascii() and code.isalnum() and len(code) <= 60 else "an unreadable code"


def _why_no_answer(error: Any) -> tuple[str, str]:
    from botocore import exceptions as boto

    if isinstance(error, boto.SSLError):
        return (
            "has no certificate that this machine trusts",
            "check endpoint_url, and AWS_CA_BUNDLE for one of your own",
        )
    if isinstance(error, boto.ProxyConnectionError):
        return "is behind a proxy that does not answer", "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    if isinstance(error, boto.ConnectTimeoutError | boto.ReadTimeoutError):
        return "does not answer in time", "check the network or VPN, and that it is up"
    if isinstance(error, boto.EndpointConnectionError):
        return "cannot be reached", "check endpoint_url in hosts.yaml, the network or VPN, and that it is up"
    if isinstance(error, boto.HTTPClientError):
        return "closed the connection before its answer", "run the command again; it goes on where it stopped"
    return f"gave no answer that can be understood ({type(error).__name__})", "check that endpoint_url is one of S3"
