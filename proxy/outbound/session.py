"""HTTP client sessions whose connections leave through the egress proxy."""

import ssl
from typing import Final

import aiohttp
from yarl import URL

from proxy.outbound.egress import Egress, bracketed
from proxy.outbound.tunnel import EgressFailed, refusal, unreachable

USER_AGENT: Final = "graphward-proxy"
_MOST_CONNECTIONS: Final = 32
_AUTHORIZATION: Final = "Proxy-Authorization"


class EgressError(aiohttp.ClientConnectionError):
    """Error because the egress proxy did not connect to the target host.

    The error's text names the egress proxy, without its credentials.
    """

    def __init__(self, failed: EgressFailed) -> None:
        super().__init__(str(failed))
        self.problem = failed.problem
        self.proxy = failed.proxy


def open_session(
    tls: ssl.SSLContext,
    egress: Egress,
    *,
    user_agent: str = USER_AGENT,
    connections: int = _MOST_CONNECTIONS,
) -> aiohttp.ClientSession:
    """Open an HTTP session without cookies that uses only the proxy and passwords in the settings.

    `connections` limits the open connections of the session. The value 0 means that the caller limits the
    connections.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
        trust_env=False,
        headers={"User-Agent": user_agent},
        middlewares=() if egress.proxy is None else (_through(egress),),
    )


def _through(egress: Egress) -> aiohttp.ClientMiddlewareType:
    """Return the middleware that sends each HTTP request of a session directly or through the egress proxy.

    For an https request, the egress proxy opens a tunnel (`CONNECT`).
    """

    async def choose_way(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        proxy = egress.proxy_for(str(request.url))
        if proxy is None:
            return await handler(request)
        given = {_AUTHORIZATION: proxy.authorization} if proxy.authorization else {}
        request.update_proxy(URL(proxy.url), None, given)
        if not request.is_ssl():
            request.headers.update(given)
        try:
            return await handler(request)
        except aiohttp.ClientHttpProxyError as error:
            target = f"{bracketed(request.host)}:{request.port}"
            raise EgressError(refusal(proxy, target, error.status, error.message)) from None
        except aiohttp.ClientConnectorError as error:
            if (error.host, error.port) != (proxy.host, proxy.port):
                raise  # this failure is the target's own
            raise EgressError(unreachable(proxy, error.os_error)) from None

    return choose_way
