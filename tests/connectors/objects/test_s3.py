from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta

import obstore
import obstore.store
import pytest
from obstore import exceptions as raised

from headgate.connectors.objects.port import ObjectStore
from headgate.connectors.objects.s3 import options as s3_options
from headgate.connectors.objects.s3.store import S3Store
from headgate.errors import AlreadyExists, InvalidInput, NotFound, PermissionDenied, Transient
from headgate.retry import Retry
from tests.connectors.objects.suite import ObjectStoreSuite
from tests.support.scripted import DROP, STORE_AND_DROP, ScriptedS3, scripted_s3
from tests.support.services import S3_SECRETS, s3_options_for

pytestmark = pytest.mark.s3

QUICK = Retry(attempts=3, base=0.001)


class TestS3Store(ObjectStoreSuite):
    @pytest.fixture
    def store(self, bucket: str, s3_options: dict[str, str]) -> ObjectStore:
        return S3Store(f"s3://{bucket}/tables/a", s3_options)

    @pytest.fixture
    def other(self, bucket: str, s3_options: dict[str, str]) -> ObjectStore:
        return S3Store(f"s3://{bucket}", {**s3_options, "aws_unsigned_payload": True})

    def test_copy_inside_a_bucket_stays_on_the_server(
        self, store: ObjectStore, bucket: str, s3_options: dict[str, str]
    ) -> None:
        clone = S3Store(f"s3://{bucket}/tables/b", s3_options)
        store.put_if_absent("src", b"body")
        store.reset_operations()
        store.copy("src", "dst", clone)
        assert bytes(clone.get("dst")) == b"body"
        assert store.operations() == {"copy": 1}
        assert clone.operations() == {"get": 1}

    def test_a_list_counts_its_pages(self, store: ObjectStore) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: store.put_if_absent(f"many/{n}", b""), range(1001)))
        store.reset_operations()
        assert len(list(store.list("many/"))) == 1001
        assert store.operations() == {"list": 2}

    def test_a_missing_bucket_is_not_found(self, s3_options: dict[str, str]) -> None:
        with pytest.raises(NotFound):
            S3Store("s3://never-was", s3_options).put_if_absent("k", b"")


def store_at(server: ScriptedS3) -> ObjectStore:
    return S3Store("s3://bucket/root", s3_options_for(server.endpoint)).retrying(QUICK)


# -- what obstore makes of an answer: the ground that put_if_absent stands on ----------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, raised.UnauthenticatedError),
        (403, raised.PermissionDeniedError),
        (404, FileNotFoundError),
        (409, raised.AlreadyExistsError),
        (412, raised.AlreadyExistsError),
        (400, raised.GenericError),
        (429, raised.GenericError),
        (500, raised.GenericError),
        (503, raised.GenericError),
        (DROP, raised.GenericError),
    ],
)
def test_obstore_has_these_kinds_and_tries_once(status: int, kind: type[Exception]) -> None:
    with scripted_s3(PUT=[status]) as server:
        config = s3_options_for(server.endpoint)
        no_retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=5)}
        client = obstore.store.S3Store("bucket", config=config, retry_config=no_retry)  # type: ignore[arg-type]
        with pytest.raises(Exception) as caught:  # noqa: PT011
            obstore.put(client, "k", b"body", mode="create", use_multipart=False)
        assert type(caught.value) is kind
        assert server.asked == {"PUT": 1}


# -- put_if_absent when the server misbehaves -------------------------------------------------------------


@pytest.mark.parametrize("status", [409, 429, 500, 503, DROP])
def test_a_passing_failure_is_tried_again(status: int) -> None:
    with scripted_s3(PUT=[status, status]) as server:
        store = store_at(server)
        store.put_if_absent("k", [b"bo", b"dy"])
        assert server.objects == {"/bucket/root/k": b"body"}
        assert store.operations()["put"] == 3 == server.asked["PUT"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Error><Code>PreconditionFailed</Code><Condition>If-None-Match</Condition></Error>",
        b"<Error><Code>PreconditionFailed</Code><Message>At least one of the pre-conditions you specified did not "
        b"hold</Message><Key>k</Key><BucketName>bucket</BucketName><Resource>/bucket/k</Resource></Error>",
        b"not xml at all",
    ],
    ids=["none", "aws-and-versitygw", "minio", "garbage"],
)
def test_a_412_is_not_tried_again_whatever_its_body(body: bytes) -> None:
    with scripted_s3() as server:
        server.refusal = body
        server.objects["/bucket/root/k"] = b"theirs"
        store = store_at(server)
        with pytest.raises(AlreadyExists):
            store.put_if_absent("k", b"mine")
        assert store.operations() == {"put": 1, "head": 1}
        assert server.objects == {"/bucket/root/k": b"theirs"}


def test_a_409_that_lost_to_a_rival_is_already_exists() -> None:
    with scripted_s3(PUT=[409]) as server:
        server.objects["/bucket/root/k"] = b"theirs"
        with pytest.raises(AlreadyExists):
            store_at(server).put_if_absent("k", b"mine")
        assert server.asked["PUT"] == 1


def test_a_lost_response_ends_in_already_exists_with_our_own_bytes() -> None:
    with scripted_s3(PUT=[STORE_AND_DROP]) as server:
        store = store_at(server)
        with pytest.raises(AlreadyExists):
            store.put_if_absent("k", b"entry id 1")
        assert bytes(store.get("k")) == b"entry id 1"
        assert server.asked["PUT"] == 2


@pytest.mark.parametrize("status", [409, 503, DROP])
def test_a_lasting_failure_is_transient(status: int) -> None:
    with scripted_s3(PUT=[status] * 99) as server:
        store = store_at(server)
        with pytest.raises(Transient) as caught:
            store.put_if_absent("k", b"body")
        assert caught.value.__cause__ is not None
        assert server.asked["PUT"] == 1 + QUICK.attempts == store.operations()["put"]


def test_a_server_that_is_away_is_transient() -> None:
    with scripted_s3() as server:
        store, address = store_at(server), server.endpoint
    with pytest.raises(Transient, match=r"put_if_absent failed: .*error") as caught:
        store.put_if_absent("k", b"body")
    assert address in caught.value.what, "the store's own reason is told, with the address that was asked"
    with pytest.raises(Transient, match=r"list failed: .*error"):
        list(store.list("a/"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_list_that_is_refused_is_told_apart_from_a_store_that_is_away(status: int) -> None:
    with scripted_s3(GET=[status] * 99, HEAD=[status] * 99) as server:
        for ask in (store_at(server).list, store_at(server).list_folders):
            with pytest.raises(PermissionDenied) as caught:
                list(ask("a/"))
            assert caught.value.fields()["key"] == "a/"
    with scripted_s3(GET=[400] * 99) as server, pytest.raises(Transient):
        list(store_at(server).list("a/"))


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_not_tried_again(status: int) -> None:
    with scripted_s3(PUT=[status] * 99) as server:
        with pytest.raises(PermissionDenied):
            store_at(server).put_if_absent("k", b"body")
        assert server.asked == {"PUT": 1}


OTHER_VERBS: dict[str, tuple[str, Callable[[ObjectStore], object], object]] = {
    "get": ("GET", lambda store: bytes(store.get("k")), b"body"),
    "head": ("HEAD", lambda store: store.head("k").size, 4),
    "list": ("GET", lambda store: list(store.list("a/")), []),
    "list_folders": ("GET", lambda store: list(store.list_folders("a/")), []),
    "put_overwrite": ("PUT", lambda store: store.put_overwrite("k", b"new"), None),
    "copy": ("PUT", lambda store: store.copy("k", "copied"), None),
    "delete": ("DELETE", lambda store: store.delete("k"), None),
}
LEFT = {"put_overwrite": {"k": b"new"}, "copy": {"k": b"body", "copied": b"body"}, "delete": {}}


@pytest.mark.parametrize("status", [429, 500, 503, DROP])
@pytest.mark.parametrize("name", OTHER_VERBS)
def test_every_other_verb_outlasts_a_passing_failure(name: str, status: int) -> None:
    verb, ask, wanted = OTHER_VERBS[name]
    with scripted_s3(**{verb: [status, status]}) as server:
        server.objects["/bucket/root/k"] = b"body"
        assert ask(store_at(server)) == wanted
        assert server.asked[verb] == 3
        left = {f"/bucket/root/{key}": body for key, body in LEFT.get(name, {"k": b"body"}).items()}
        assert server.objects == left


# -- options and secrets ------------------------------------------------------------------------------------


def test_no_secret_shows_in_errors_or_in_the_text_of_a_store() -> None:
    with scripted_s3(PUT=[403]) as server:
        options = {**s3_options_for(server.endpoint), "aws_session_token": "the-session-token"}
        server.error_text = " ".join(options.values())
        store = S3Store("s3://bucket/root", options)
        with pytest.raises(PermissionDenied) as caught:
            store.put_if_absent("k", b"body")
    shown = "".join(traceback.format_exception(caught.value)) + repr(store) + str(store) + store.uri
    assert "403" in shown
    for secret in (*S3_SECRETS, "the-session-token"):
        assert secret not in shown


@pytest.mark.parametrize(
    "uri", ["s3://AKIA:the/secret@bucket/a", "s3://user@bucket/a", "s3://bucket/a?token=secret", "s3://"]
)
def test_a_uri_with_credentials_is_refused_without_showing_them(uri: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        S3Store(uri)
    assert "secret" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


def test_options_are_known_by_every_spelling() -> None:
    checked = s3_options.checked_options(
        {"AWS_ACCESS_KEY_ID": "a", "secret_access_key": "b", "aws_virtual_hosted_style_request": False, "TIMEOUT": "5s"}
    )
    assert checked == {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_virtual_hosted_style_request": "false",
        "timeout": "5s",
        "aws_disable_bulk_delete": "true",
    }
    assert "client_max_retries" not in s3_options.checked_options({"client_max_retries": "3"})


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match="aws_secret_access_key") as caught:
        S3Store("s3://bucket", {"aws_secret_acces_key": "hush-hush"})
    assert "hush-hush" not in str(caught.value)


def test_plain_http_needs_a_word() -> None:
    with pytest.raises(InvalidInput, match="allow_http"):
        S3Store("s3://bucket", {"aws_endpoint": "http://127.0.0.1:1"})


def test_an_option_value_that_obstore_refuses_is_invalid() -> None:
    with pytest.raises(InvalidInput) as caught:
        S3Store("s3://bucket", {"timeout": "soon"}).head("k")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("name", sorted(s3_options.OF_S3 | s3_options.OF_CLIENT))
def test_obstore_knows_every_option_that_is_accepted(name: str) -> None:
    try:
        obstore.store.S3Store("bucket", config=s3_options.checked_options({name: "true"}))  # type: ignore[arg-type]
    except raised.UnknownConfigurationKeyError:
        pytest.fail(f"obstore does not know {name}")
    except raised.BaseError:
        pass  # known, and "true" is no value for it


def test_a_used_store_is_pickled_without_its_clients(bucket: str, s3_options: dict[str, str]) -> None:
    store = S3Store(f"s3://{bucket}", s3_options)
    store.put_if_absent("k", b"body")
    assert bytes(pickle.loads(pickle.dumps(store)).get("k")) == b"body"
