"""The parts of every console page: sign-in, layout, error pages and static files."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import partial
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from controlplane.admin.gate import GATE, csrf_token
from controlplane.admin.single_sign_on import BEGIN_PATH, is_offered, link_to_begin
from controlplane.console import text, zones
from controlplane.console.areas import GROUPS, ROUTES, Entry
from controlplane.console.event_rows import shown
from controlplane.console.pages import NO_FORM, Page, PageRequest, PageRoute, Redirect, understood
from controlplane.console.rendering import environment, read_static
from controlplane.errors import Refused
from controlplane.operations.actor import Actor
from controlplane.operations.context import OperationContext
from controlplane.operations.emergency import Everything
from controlplane.operations.emergency import list_all as list_stops
from controlplane.operations.operation import InvalidRequest
from controlplane.operations.perform import perform, refusal_code
from controlplane.operations.proposals import CountWaiting
from controlplane.operations.proposals import waiting as count_waiting
from controlplane.operations.stop_effects import StopFilesRequest, stop_files
from controlplane.requests import of_any_name
from controlplane.search.interface import SearchIndex
from controlplane.store.interface import Role, StoreError, WasDeleted
from proxy.policy.time_zones import checked_time_zone

_log = logging.getLogger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    # Pages show secrets, which the next user must not see with the browser's "back" button
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FLASH_COOKIE: Final = "graphward-flash"
_THEME_COOKIE: Final = "graphward-theme"
_ZONE_COOKIE: Final = "graphward-zone"
_YEAR_SECONDS: Final = 31_536_000
_OF_PROGRAMS: Final = ("/admin/", "/api/")
_LOCAL: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")
_TITLES: Final = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible",
    409: "Conflict",
    413: "Too large",
    429: "Too many requests",
    503: "Unavailable",
}
_STORE_AWAY: Final = (
    "the control plane can't use its store now. Proxies continue with their last rules, and keep"
    " their events until the store is back"
)
_INDEX_IS_BEHIND: Final = (
    "The search index is being filled: it has {}% of the stored events. Counts and lists may lack the others."
)
_RETRY_SECONDS: Final = "5"


def local_path(target: str) -> str:
    """Return the path of the page that the browser opens after a sign-in.

    If the given text could lead to another web site, return the path of the overview page instead.
    """
    return target if _LOCAL.fullmatch(target) else "/"


class _IndexUse:
    """The search index for one console page, with a flag that shows if the page used the index."""

    def __init__(self, index: Callable[[], Awaitable[SearchIndex]]) -> None:
        self._index = index
        self.is_used = False

    async def __call__(self) -> SearchIndex:
        self.is_used = True
        return await self._index()


class Console:
    def __init__(self, context: OperationContext) -> None:
        self._context = context
        self._static = read_static()
        self._templates = environment()

    def routes(self) -> list[web.RouteDef]:
        pages = [_route(route, partial(self._page, route)) for route in ROUTES]
        return [
            web.get("/static/{version}/{name}", self._file),
            web.get("/login", self._login),
            web.post("/login", self._sign_in),
            web.post("/logout", self._sign_out),
            web.post("/theme", self._theme),
            web.post("/zone", self._choose_zone),
            *pages,
        ]

    # Pages

    async def _page(self, route: PageRoute, request: web.Request) -> web.StreamResponse:
        gate = request.app[GATE]
        form = await gate.form(request) if request.method == "POST" else NO_FORM
        actor = (await gate.caller(request)).actor
        if actor is None:
            return _redirect(f"/login?{urlencode({'next': _wanted(request)})}")
        reference = request.query.get("org")
        org = await self._context.resolve.org_of_events(actor, reference) if reference else None
        query, remarks = understood(route, request.query)
        asked = PageRequest(request.path, request.match_info, query, form, org, self._now_ms, _zone(request))
        index = _IndexUse(self._context.index)
        result = await route.handler(replace(self._context, index=index), actor, asked)
        if isinstance(result, Redirect):
            return _with_flash(_redirect(result.to), result.flash, secure=gate.secure)
        if index.is_used and self._context.is_behind():
            remarks = (*remarks, _INDEX_IS_BEHIND.format(self._context.percent_indexed()))
        return await self._framed(request, actor, asked, result, remarks)

    async def _framed(
        self,
        request: web.Request,
        actor: Actor,
        asked: PageRequest,
        page: Page,
        remarks: Sequence[str] = (),
    ) -> web.StreamResponse:
        flash = unquote(request.cookies.get(_FLASH_COOKIE, ""))
        orgs = await self._context.resolve.orgs(actor)
        by_file = (await perform(stop_files, self._context, actor, StopFilesRequest())).proxies
        values = {
            **_common(request, asked),
            "actor": actor,
            "may": partial(_may, actor),
            "csrf": await csrf_token(request),
            "orgs": orgs,
            "administered": [org for org in orgs if actor.may("admin", org.org_id)],
            "org_names": {org.org_id: org.name for org in orgs},
            "groups": _navigation(),
            "stops": (await perform(list_stops, self._context, actor, Everything())).stops,
            "stop_files": by_file,
            "stopped_by_file": Counter(org for each in by_file if each.everything for org in each.org_ids),
            "waiting": await perform(count_waiting, self._context, actor, CountWaiting()),
            "flash": flash,
            "remarks": [shown(text.times_in(each, asked.zone)) for each in (*remarks, *page.remarks)],
            "refused": page.refused,
            "form": asked.form,
            "page": page,
            **page.values,
        }
        response = self._html(request, page.template, values, page.status)
        if flash:
            response.del_cookie(_FLASH_COOKIE, path="/")
        return response

    def _html(
        self, request: web.Request, template: str, values: Mapping[str, object], status: int = 200
    ) -> web.Response:
        body = self._templates.get_template(template).render(values)
        response = web.Response(status=status, text=body, content_type="text/html", headers=HEADERS)
        # Compressed pages contain only masked secrets: a secret is shown once, in the response to a POST.
        if request.method == "GET" and _takes_gzip(request):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    @property
    def _now_ms(self) -> int:
        return self._context.clock.wall_ms()

    def _plain(self, request: web.Request) -> PageRequest:
        """Return a request for a web page, for use by an error page, without parts that may be invalid."""
        return PageRequest(request.path, {}, request.query, NO_FORM, None, self._now_ms, _zone(request))

    # Errors

    def shows_errors(self) -> Middleware:
        """Return a middleware that responds to errors with HTML pages, except on paths for programs."""

        @web.middleware
        async def shown(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if request.path.startswith(_OF_PROGRAMS):
                return await handler(request)
            try:
                return await handler(request)
            except (web.HTTPRedirection, ConnectionError):
                raise
            except Exception as error:
                return await self._error(request, error)

        return shown

    async def _error(self, request: web.Request, error: Exception) -> web.StreamResponse:
        status, message = _describe(request, error)
        try:
            return await self._error_page(request, error, status, message)
        except StoreError as away:  # the store can't provide the operator or the content of the frame
            status, message = _describe(request, away)
            target = local_path(_wanted(request))
            response = self._bare(request, status, message, ("Try again", target))
            response.headers["Retry-After"] = _RETRY_SECONDS
            return response

    async def _error_page(
        self, request: web.Request, error: Exception, status: int, message: str
    ) -> web.StreamResponse:
        actor = (await request.app[GATE].caller(request)).actor
        if actor is None and isinstance(error, Refused) and request.path.startswith(BEGIN_PATH):
            return self._sign_in_page(request, "/", error=error)
        if actor is None and status == 404:
            return _redirect(f"/login?{urlencode({'next': _wanted(request)})}")
        if actor is None:
            return self._bare(request, status, message, ("Sign in", "/login"))
        dead = error.dead if isinstance(error, WasDeleted) else None
        title = _title(status) if dead is None else "Deleted"
        page = Page("error.html", title, {"message": message, "dead": dead}, status=status)
        return await self._framed(request, actor, self._plain(request), page)

    def _bare(
        self, request: web.Request, status: int, message: str, goes_on: tuple[str, str]
    ) -> web.Response:
        """Return an error page that does not show the navigation of the console.

        `goes_on` is the link on the error page, as (text, path).
        """
        values = {"title": _title(status), "message": message, "goes_on": goes_on}
        return self._html(
            request, "stranger.html", {**_common(request, self._plain(request)), **values}, status
        )

    # Sign-in and sign-out

    async def _login(self, request: web.Request) -> web.StreamResponse:
        wanted = local_path(request.query.get("next", "/"))
        if (await request.app[GATE].caller(request)).actor is not None:
            return _redirect(wanted)
        return self._sign_in_page(request, wanted)

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        gate = request.app[GATE]
        form = await gate.form(request)
        wanted, name = local_path(form.get("next", "/")), form.get("name", "")
        response = _redirect(wanted)
        try:
            await gate.sign_in(request, response, name, form.get("password", ""))
        except Refused as error:
            return self._sign_in_page(request, wanted, name, error)
        return response

    def _sign_in_page(
        self, request: web.Request, wanted: str, name: str = "", error: Refused | None = None
    ) -> web.Response:
        said = error.message if error else ""
        values = {
            "next": wanted,
            "name": name,
            "refused": [said] if said else [],
            "single_sign_on": link_to_begin(wanted) if is_offered(request) else None,
        }
        common = _common(request, self._plain(request))
        response = self._html(request, "login.html", {**common, **values}, error.status if error else 200)
        if error:
            response.headers.update(error.headers)
        return response

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        response = _redirect("/login")
        await request.app[GATE].sign_out(request, response)
        return response

    # Static files and settings of the browser

    async def _file(self, request: web.Request) -> web.Response:
        found = self._static.files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        current = request.match_info["version"] == self._static.version
        caching = "public, max-age=31536000, immutable" if current else "no-cache"
        headers = {**HEADERS, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        body = found.body
        if _takes_gzip(request):
            headers["Content-Encoding"], body = "gzip", found.gzipped
        return web.Response(body=body, content_type=found.content_type, charset="utf-8", headers=headers)

    async def _theme(self, request: web.Request) -> web.StreamResponse:
        """Switch between the light and the dark theme for a browser that runs no script."""
        form = await request.app[GATE].form(request)
        back = _redirect(local_path(form.get("next", "/")))
        wanted = "light" if _theme_of(request) == "dark" else "dark"
        secure = request.app[GATE].secure
        back.set_cookie(
            _THEME_COOKIE, wanted, max_age=_YEAR_SECONDS, path="/", secure=secure, samesite="Strict"
        )
        return back

    async def _choose_zone(self, request: web.Request) -> web.StreamResponse:
        """Store the time zone of the form in a cookie, so that later pages show times in that zone.

        Refuse the name of a time zone that this host does not have.
        """
        gate = request.app[GATE]
        form = await gate.form(request)
        try:
            name = checked_time_zone(form.get("zone", "").strip())
        except ValueError as error:
            raise InvalidRequest(f"zone: {error}") from None
        back = _redirect(local_path(form.get("next", "/")))
        back.set_cookie(
            _ZONE_COOKIE, name, max_age=_YEAR_SECONDS, path="/", httponly=True, secure=gate.secure,
            samesite="Strict",
        )  # fmt: skip
        return back


def _route(route: PageRoute, handler: _Handler) -> web.RouteDef:
    path = of_any_name(route.path)
    return web.get(path, handler) if route.method == "GET" else web.post(path, handler)


def _common(request: web.Request, asked: PageRequest) -> dict[str, object]:
    """Return the values that every page template can use, even if nobody is signed in."""
    return {
        "request": asked,
        "link": asked.link,
        "changed": asked.changed,
        "theme": _theme_of(request),
        "time": partial(text.time_tag, now_ms=asked.now_ms, zone=asked.zone),
        "age": partial(text.age_tag, now_ms=asked.now_ms, zone=asked.zone),
        "short_age": partial(text.short_age_tag, now_ms=asked.now_ms, zone=asked.zone),
        "clock": partial(text.clock_tag, now_ms=asked.now_ms, zone=asked.zone),
        "zone": zones.name_of(asked.zone),
        "age_text": partial(text.age_text, now_ms=asked.now_ms),
    }


def _title(status: int) -> str:
    return _TITLES.get(status, "Something went wrong")


def _may(actor: Actor, role: Role, org_id: str | None) -> bool:
    return actor.may(role, org_id)


def _navigation() -> list[tuple[str, list[Entry]]]:
    paths = {route.path for route in ROUTES}
    shown = [(title, [entry for entry in entries if entry.path in paths]) for title, entries in GROUPS]
    return [(title, entries) for title, entries in shown if entries]


def _describe(request: web.Request, error: Exception) -> tuple[int, str]:
    """Return the HTTP status of an error, and a sentence for the error page.

    Write the details of an internal error to the log.
    """
    if isinstance(error, Refused):
        return error.status, error.message
    if isinstance(error, web.HTTPNotFound | web.HTTPMethodNotAllowed):
        return error.status, "this page does not exist"
    if (code := refusal_code(error)) is not None:
        return Refused(code, str(error)).status, str(error)
    if isinstance(error, StoreError):
        _log.error("%s %s: %s", request.method, request.path, error)
        return 503, _STORE_AWAY
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return 500, "the control plane failed to make this page; its log gives the reason"


def _wanted(request: web.Request) -> str:
    """Return the path to open after a sign-in: the requested page, or the page of the submitted form."""
    if request.method == "GET":
        return request.path_qs
    try:
        came_from = urlsplit(request.headers.get("Referer", ""))
    except ValueError:  # a Referer that no browser sends
        return "/"
    return f"{came_from.path}?{came_from.query}" if came_from.query else came_from.path or "/"


def _redirect(to: str) -> web.Response:
    return web.Response(status=303, headers={**HEADERS, "Location": to})


def _with_flash(response: web.Response, flash: str, *, secure: bool) -> web.Response:
    if flash:
        response.set_cookie(
            _FLASH_COOKIE, quote(flash), max_age=60, path="/", httponly=True, secure=secure, samesite="Strict"
        )
    return response


def _zone(request: web.Request) -> tzinfo:
    return zones.zone_of(request.cookies.get(_ZONE_COOKIE, ""))


def _takes_gzip(request: web.Request) -> bool:
    """Return whether the client accepts a response with gzip compression.

    Browsers list gzip in Accept-Encoding without a weight.
    """
    codings = request.headers.get("Accept-Encoding", "").split(",")
    return "gzip" in (each.strip().lower() for each in codings)


def _theme_of(request: web.Request) -> str:
    chosen = request.cookies.get(_THEME_COOKIE, "")
    return chosen if chosen in ("light", "dark") else ""
