"""An application on msgraph-sdk that prints the result of each step."""

import asyncio
import hashlib
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

from azure.identity.aio import DefaultAzureCredential
from client import PROXY, graph_client
from kiota_abstractions.api_error import APIError
from kiota_abstractions.base_request_configuration import RequestConfiguration
from kiota_abstractions.method import Method
from kiota_abstractions.native_response_handler import NativeResponseHandler
from kiota_abstractions.request_information import RequestInformation
from kiota_http.middleware.options import ResponseHandlerOption
from msgraph import GraphServiceClient
from msgraph.generated.drives.item.items.item.create_upload_session import (
    create_upload_session_post_request_body as upload_session,
)
from msgraph.generated.models.drive_item import DriveItem
from msgraph.generated.models.group import Group
from msgraph.generated.models.group_collection_response import GroupCollectionResponse
from msgraph.generated.models.o_data_errors.o_data_error import ODataError
from msgraph.generated.models.user_collection_response import UserCollectionResponse
from msgraph.generated.users.item.user_item_request_builder import UserItemRequestBuilder
from msgraph.generated.users.users_request_builder import UsersRequestBuilder
from msgraph_core.requests.batch_request_content import BatchRequestContent
from msgraph_core.requests.batch_request_item import BatchRequestItem
from msgraph_core.tasks.large_file_upload import LargeFileUploadTask
from msgraph_core.tasks.page_iterator import PageIterator

UsersQuery = UsersRequestBuilder.UsersRequestBuilderGetQueryParameters
UserQuery = UserItemRequestBuilder.UserItemRequestBuilderGetQueryParameters
ADA = "ada@contoso.com"


async def raw(client: GraphServiceClient, request: RequestInformation) -> Any:
    """Return the response as httpx has it, for parts that the SDK's models don't show."""
    request.add_request_options([ResponseHandlerOption(NativeResponseHandler())])
    return await client.request_adapter.send_async(request, UserCollectionResponse, {})


def get(path: str, **headers: str) -> RequestInformation:
    request = RequestInformation()
    request.http_method = Method.GET
    request.url = f"{PROXY}{path}"
    for name, value in headers.items():
        request.headers.add(name.replace("_", "-"), value)
    return request


def report(error: APIError) -> dict[str, Any]:
    assert isinstance(error, ODataError)
    assert error.error is not None
    assert error.error.inner_error is not None
    return {
        "type": type(error).__name__,
        "status": error.response_status_code,
        "code": error.error.code,
        "message": error.error.message,
        "ruleId": error.error.additional_data.get("ruleId"),
        "requestId": error.error.inner_error.request_id,
        "clientRequestId": error.error.inner_error.client_request_id,
    }


async def refused(call: Awaitable[Any]) -> dict[str, Any]:
    try:
        await call
    except ODataError as error:
        return report(error)
    return {}


async def pages(client: GraphServiceClient) -> Any:
    users: list[Any] = []
    page = await client.users.get(RequestConfiguration(query_parameters=UsersQuery(top=5)))
    await PageIterator(page, client.request_adapter).iterate(lambda user: users.append(user) or True)
    return {
        "names": [user.display_name for user in users],
        "phones": sum(user.mobile_phone is not None for user in users),
        "next": page.odata_next_link,
    }


async def long_page(client: GraphServiceClient) -> Any:
    page = await client.groups.with_url(f"{PROXY}/v1.0/groups/long").get()
    following = await client.users.with_url(page.odata_next_link).get()
    return {
        "sha256": hashlib.sha256(page.value[0].description.encode()).hexdigest(),
        "next": page.odata_next_link,
        "following": [user.display_name for user in following.value],
    }


async def delta(client: GraphServiceClient) -> Any:
    count = 0
    page = await client.users.delta.get()
    while True:
        count += len(page.value)
        if not page.odata_next_link:
            break
        page = await client.users.delta.with_url(page.odata_next_link).get()
    later = await client.users.delta.with_url(page.odata_delta_link).get()
    return {"count": count, "later": len(later.value), "delta": page.odata_delta_link}


async def one_user(client: GraphServiceClient) -> Any:
    query = RequestConfiguration(query_parameters=UserQuery(expand=["manager"]))
    user = await client.users.by_user_id(ADA).get(query)
    return {"name": user.display_name, "phone": user.mobile_phone, "manager": user.manager.additional_data}


async def blocked(client: GraphServiceClient) -> Any:
    with_id: RequestConfiguration[Any] = RequestConfiguration()
    with_id.headers.add("client-request-id", "6f8b9a54-0000-4000-8000-000000000001")
    return {
        "mail": await refused(client.users.by_user_id(ADA).messages.get(with_id)),
        "download": await refused(
            client.drives.by_drive_id("payroll").items.by_drive_item_id("report").content.get()
        ),
        "default": await refused(client.sites.by_site_id("root").get()),
        "probe": await refused(
            client.users.get(
                RequestConfiguration(query_parameters=UsersQuery(filter="startswith(mobilePhone,'+47')"))
            )
        ),
        "searched": await refused(
            client.users.get(RequestConfiguration(query_parameters=UsersQuery(search='"mobilePhone:+47"')))
        ),
        "sorted": await refused(
            client.users.get(RequestConfiguration(query_parameters=UsersQuery(orderby=["mobilePhone"])))
        ),
    }


async def upstream_errors(client: GraphServiceClient) -> Any:
    return {
        "missing": await refused(client.groups.by_group_id("none").get()),
        "broken": await refused(client.groups.by_group_id("broken").get()),
    }


async def batch(client: GraphServiceClient) -> Any:
    ada = client.users.by_user_id(ADA)
    content = BatchRequestContent()
    for item in (
        BatchRequestItem(ada.to_get_request_information(), id="user"),
        BatchRequestItem(ada.messages.to_get_request_information(), id="mail"),
        BatchRequestItem(get("/v1.0/users?$top=5"), id="page"),
        BatchRequestItem(get("/v1.0/operations"), id="operation"),
    ):
        content.add_request(item.id, item)
    request = await client.batch.to_post_request_information(content)
    parts = (await raw(client, request)).json()["responses"]
    page = next(each["body"] for each in parts if each["id"] == "page")
    following = await client.users.with_url(page["@odata.nextLink"]).get()
    return {
        "parts": {each["id"]: each for each in parts},
        "following": [user.display_name for user in following.value],
    }


async def refused_batch(client: GraphServiceClient) -> Any:
    """Send a batch with a sub-request of a different API version than the batch."""
    item = BatchRequestItem(get("/v1.0/users"), id="1")
    item.set_url("https://graph.microsoft.com/beta/users/ada@contoso.com/messages")
    content = BatchRequestContent()
    content.add_request("1", item)
    request = await client.batch.to_post_request_information(content)
    response = await raw(client, request)
    return {"status": response.status_code, "code": response.json()["error"]["code"]}


async def faults(client: GraphServiceClient) -> Any:
    mail = BatchRequestItem(client.users.by_user_id(ADA).messages.to_get_request_information(), id="mail")
    content = BatchRequestContent()
    content.add_request("mail", mail)
    content.add_request("after", BatchRequestItem(get("/v1.0/echo/after"), id="after", depends_on=[mail]))
    response = await client.batch.post(content)
    assert response.responses is not None
    return {
        "after a blocked part": response.get_response_status_codes()["after"],
        "bodies": [part.body for part in response.responses.values()],
    }


async def retried(client: GraphServiceClient) -> Any:
    async def one(status: int) -> int:
        groups = await client.groups.with_url(f"{PROXY}/v1.0/groups/retried-{status}").get()
        assert isinstance(groups, GroupCollectionResponse)
        return len(groups.value)

    return await asyncio.gather(one(429), one(503), one(504))


async def written(client: GraphServiceClient) -> Any:
    group = await client.groups.post(Group(display_name="Größe", mail_enabled=False))
    await client.groups.by_group_id("1").with_url(f"{PROXY}/v1.0/status/204").delete()
    return {"created": group.id}


async def conditional(client: GraphServiceClient) -> Any:
    first = await raw(client, get("/v1.0/users/ada@contoso.com/photo/$value"))
    again = await raw(
        client, get("/v1.0/users/ada@contoso.com/photo/$value", If_None_Match=first.headers["etag"])
    )
    return {"first": first.status_code, "again": again.status_code, "bytes": len(first.content)}


async def headers(client: GraphServiceClient) -> Any:
    sent = {"Prefer": 'outlook.timezone="Europe/Oslo"', "ConsistencyLevel": "eventual"}
    response = await raw(client, get("/v1.0/echo/headers", **sent))
    return {"head": response.json()["head"], "coding": response.headers.get("content-encoding")}


async def override(client: GraphServiceClient) -> Any:
    responses = {}
    for name in ("X_HTTP_Method_Override", "X_HTTP_Method", "X_Method_Override"):
        responses[name] = (await raw(client, get("/v1.0/echo/override", **{name: "DELETE"}))).status_code
    return responses


async def redirect(client: GraphServiceClient) -> Any:
    page = await client.users.with_url(f"{PROXY}/v1.0/redirect").get()
    return [user.display_name for user in page.value]


async def download(client: GraphServiceClient) -> Any:
    return len(await client.drives.by_drive_id("d").items.by_drive_item_id("report").content.get())


async def upload(client: GraphServiceClient) -> Any:
    item = client.drives.by_drive_id("d").items.by_drive_item_id("root:/report.bin:")
    session = await item.create_upload_session.post(upload_session.CreateUploadSessionPostRequestBody())
    data = bytes(range(256)) * 4000
    task = LargeFileUploadTask(session, client.request_adapter, io.BytesIO(data), DriveItem, 320 * 1024)
    await task.upload()
    return {"url": session.upload_url, "bytes": len(data)}


STEPS: tuple[Callable[[GraphServiceClient], Awaitable[Any]], ...] = (
    pages, long_page, delta, one_user, blocked, upstream_errors, batch, refused_batch, faults, retried,
    written, conditional, headers, override, redirect, download, upload,
)  # fmt: skip


async def main() -> None:
    async with DefaultAzureCredential() as credential:
        client = graph_client(credential)

        async def result(step: Callable[[GraphServiceClient], Awaitable[Any]]) -> Any:
            try:
                return await step(client)
            except Exception as error:
                return {"raised": repr(error)}

        results = await asyncio.gather(*map(result, STEPS))
    print(json.dumps({step.__name__: each for step, each in zip(STEPS, results, strict=True)}))


if __name__ == "__main__":
    asyncio.run(main())
