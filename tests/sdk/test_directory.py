"""Tests of Microsoft's unmodified Graph SDKs behind the proxy: common calls, and refused calls."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.fakes.graph import user
from tests.fakes.transfers import DOWNLOAD
from tests.process.proxy_parts import events, until
from tests.sdk.conftest import LONG_TEXT, Harness, Results

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

EVERYBODY = [user(number)["displayName"] for number in range(12)]
MAIL = "/v1.0/users/ada@contoso.com/messages"


def spelled(path: str) -> str:
    return path.replace("%40", "@")


def targets(harness: Harness, path: str) -> list[str]:
    """Return the full targets of all requests that the upstream received for a path."""
    return [each.target for each in harness.system.graph.requests if spelled(each.path) == path]


@pytest.mark.usefixtures("directory")
async def test_no_token_and_no_secret_of_the_application_s_reaches_the_upstream(harness: Harness) -> None:
    harness.assert_nothing_leaked()


async def test_a_walk_through_pages_stays_with_the_proxy(harness: Harness, directory: Results) -> None:
    pages = directory["pages"]
    assert pages["names"] == EVERYBODY
    assert pages["phones"] == 0  # the property is on no page
    assert pages["next"].startswith(f"{harness.system.proxy_url}/v1.0/users?")


async def test_so_does_one_through_a_page_that_is_rewritten_as_it_comes(
    harness: Harness, directory: Results
) -> None:
    page = directory["long_page"]
    assert page["sha256"] == hashlib.sha256(LONG_TEXT.encode()).hexdigest()
    assert page["next"].startswith(f"{harness.system.proxy_url}/v1.0/users?")
    assert page["following"] == EVERYBODY[10:]


async def test_so_do_changes_since_the_last_time(harness: Harness, directory: Results) -> None:
    delta = directory["delta"]
    assert (delta["count"], delta["later"]) == (12, 1)
    assert delta["delta"].startswith(f"{harness.system.proxy_url}/v1.0/users/delta?")


async def test_a_hidden_property_is_in_no_response(directory: Results) -> None:
    assert directory["one_user"]["name"] == "Ada Lovelace"
    assert directory["one_user"]["phone"] is None
    assert directory["one_user"]["manager"]["mail"] == "alan@contoso.com"
    assert "+47 900" not in str(directory)


async def test_a_refusal_is_an_error_of_the_sdk_s_own_type(harness: Harness, directory: Results) -> None:
    blocked = directory["blocked"]
    rules = {name: (each["status"], each["code"], each["ruleId"]) for name, each in blocked.items()}
    assert rules == {
        "mail": (403, "policyBlocked", "no-mail"),
        "download": (403, "policyBlocked", "no-payroll"),
        "default": (403, "policyBlocked", "default"),
        "probe": (403, "policyBlocked", "no-phones"),
        "sorted": (403, "policyBlocked", "no-phones"),
        "searched": (403, "policyBlocked", "no-phones"),
    }
    mail = blocked["mail"]
    assert mail["message"] == "Graphward blocked this request by rule 'no-mail'."
    assert mail["clientRequestId"] == "6f8b9a54-0000-4000-8000-000000000001"
    await until(lambda: mail["requestId"] in {each["requestId"] for each in events(harness.system)})
    assert {each["type"] for each in blocked.values()} <= {"ODataError", "GraphError"}


async def test_what_is_refused_never_reaches_the_upstream(harness: Harness, directory: Results) -> None:
    assert targets(harness, MAIL) == []
    assert targets(harness, "/v1.0/sites/root") == []
    assert targets(harness, "/v1.0/drives/payroll/items/report/content") == []
    assert not any("mobilePhone" in each.target for each in harness.system.graph.requests)


async def test_the_upstream_s_own_errors_are_told_apart(directory: Results) -> None:
    errors = directory["upstream_errors"]
    missing, broken = errors["missing"], errors["broken"]
    assert (missing["status"], missing["code"]) == (404, "Request_ResourceNotFound")
    assert (broken["status"], broken["code"]) == (502, "upstreamError")


async def test_the_parts_of_a_batch_are_evaluated_one_by_one(harness: Harness, directory: Results) -> None:
    batch = directory["batch"]
    parts = batch["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        "user": 200, "mail": 403, "page": 200, "operation": 202,
    }  # fmt: skip
    assert parts["mail"]["body"]["error"]["ruleId"] == "no-mail"
    assert parts["user"]["body"]["displayName"] == "Ada Lovelace"
    assert "mobilePhone" not in str(parts)
    sent = [bytes(each.body) for each in harness.system.graph.requests if each.path == "/v1.0/$batch"]
    assert sent
    assert not any(b"messages" in body for body in sent)


async def test_links_within_a_batch_lead_back_to_the_proxy(harness: Harness, directory: Results) -> None:
    batch = directory["batch"]
    proxy = f"{harness.system.proxy_url}/v1.0"
    assert batch["parts"]["page"]["body"]["@odata.nextLink"].startswith(f"{proxy}/users?")
    headers = batch["parts"]["operation"]["headers"]
    assert {headers["Location"], headers["Operation-Location"]} == {f"{proxy}/operations/1"}
    assert batch["following"] == EVERYBODY[5:10]


async def test_each_part_of_a_batch_leaves_an_event(harness: Harness, directory: Results) -> None:
    def of_parts() -> list[tuple[str, int, str]]:
        known = {each["requestId"]: each for each in events(harness.system)}
        parts = [each for each in known.values() if each["parentRequestId"] in known]
        assert {known[each["parentRequestId"]]["path"] for each in parts} <= {"/v1.0/$batch"}
        return [(spelled(each["path"]), each["status"], each["ruleId"]) for each in parts]

    expected = {
        (MAIL, 403, "no-mail"),
        ("/v1.0/operations", 202, "the-rest"),
        ("/v1.0/users", 200, "no-phones"),
    }
    await until(lambda: expected <= set(of_parts()))


async def test_a_batch_cannot_leave_its_version(directory: Results) -> None:
    assert directory["refused_batch"] == {"status": 400, "code": "badRequest"}


async def test_throttling_is_retried_by_the_sdk(harness: Harness, directory: Results) -> None:
    assert directory["retried"] == [1, 1, 1]
    assert [len(targets(harness, f"/v1.0/groups/retried-{status}")) for status in (429, 503, 504)] == [
        3,
        3,
        3,
    ]


async def test_what_is_written_arrives_as_the_sdk_wrote_it(harness: Harness, directory: Results) -> None:
    written = directory["written"]
    assert written["created"] == "b320ee12-b1cd-4cca-b648-a437be61c5cd"
    (request,) = (each for each in harness.system.graph.requests if each.path == "/v1.0/groups")
    group = json.loads(bytes(request.body))
    assert request.method == "POST"
    assert (group["displayName"], group["mailEnabled"]) == ("Größe", False)
    assert ("DELETE", "/v1.0/status/204") in {
        (each.method, each.path) for each in harness.system.graph.requests
    }


async def test_an_entity_tag_saves_the_second_response(directory: Results) -> None:
    assert directory["conditional"] == {"first": 200, "again": 304, "bytes": 4096}


async def test_an_application_s_own_headers_arrive(directory: Results) -> None:
    head = directory["headers"]["head"].lower()
    assert '\r\nprefer: outlook.timezone="europe/oslo"\r\n' in head
    assert "\r\nconsistencylevel: eventual\r\n" in head
    # The first coding that the client's HTTP library requests and can read.
    coding = {"python": "gzip", "javascript": "br"}[directory["language"]]
    assert directory["headers"]["coding"] == coding


async def test_a_method_in_a_header_is_refused(harness: Harness, directory: Results) -> None:
    assert set(directory["override"].values()) == {400}
    assert targets(harness, "/v1.0/echo/override") == []


async def test_a_redirect_to_the_upstream_leads_back_to_the_proxy(directory: Results) -> None:
    assert directory["redirect"] == EVERYBODY[:2]


async def test_a_download_elsewhere_is_fetched_there_without_a_token(directory: Results) -> None:
    assert directory["download"] == len(DOWNLOAD)


async def test_an_upload_session_is_filled_where_it_is_without_a_token(
    harness: Harness, directory: Results
) -> None:
    upload = directory["upload"]
    name = upload["url"].rpartition("/")[2].partition("?")[0]
    assert upload["url"].startswith(f"https://localhost:{harness.system.graph.port}/uploads/")
    assert len(harness.system.graph.uploads[name]) == upload["bytes"]


async def test_the_sdks_own_faults_are_still_there(directory: Results) -> None:
    """Fail if a newer SDK has fixed a fault that docs/reference/sdk-compatibility.md lists."""
    if directory["language"] == "python":
        # msgraph-core misspells dependsOn, so it has no effect; kiota drops the bodies of a batch's
        # responses.
        assert directory["faults"] == {"after a blocked part": 200, "bodies": [None, None]}
    else:
        # Only the host is removed from an address in a batch, so the version stays in it.
        assert directory["faults"] == {"url": "/v1.0/users"}
        assert directory["dependent"] == {"mail": 403, "after": 424}
