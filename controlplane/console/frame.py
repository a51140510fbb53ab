"""The frame around every page: sign-in, form tokens, layout, errors, static files."""

from __future__ import annotations

import hashlib
import logging
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlencode

import jinja2
from aiohttp import web

from controlplane.console import charts, text
from controlplane.console.areas import GROUPS, ROUTES
from controlplane.console.pages import NO_FORM, Page, PageRequest, PageRoute, Redirect, Refusal
from controlplane.operations.actor import Actor, Forbidden
from controlplane.operations.desk import Desk
from controlplane.store.interface import NotFound, StoreError

_log = logging.getLogger(__name__)

_HERE: Final = Path(__file__).parent
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
FLASH_COOKIE: Final = "graphward-flash"
THEME_COOKIE: Final = "graphward-theme"
_LOCAL: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who is signed in, and the token that every form of theirs carries."""

    actor: Actor
    csrf: str


class Gate(Protocol):
    """Tells who asks, and reads forms that are known to be ours."""

    async def visitor(self, request: web.Request) -> Visitor | None: ...
    async def form(self, request: web.Request) -> Mapping[str, str]: ...


def local_path(target: str) -> str:
    """Where to go after a sign-in: a path of ours, or the overview if the text could lead elsewhere."""
    return target if _LOCAL.fullmatch(target) else "/"


class Console:
    def __init__(self, desk: Desk, gate: Gate) -> None:
        self._desk = desk
        self._gate = gate
        self._static = _read_static()
        self._templates = _environment(self._static)

    def routes(self) -> list[web.RouteDef]:
        pages = [web.route(route.method, route.path, partial(self._page, route)) for route in ROUTES]
        return [
            web.get("/static/{version}/{name}", self._file),
            web.post("/theme", self._theme),
            *pages,
            web.get("/{rest:(?!admin/|api/).*}", self._nothing),
        ]

    # From a request to a page

    async def _page(self, route: PageRoute, request: web.Request) -> web.StreamResponse:
        visitor = await self._gate.visitor(request)
        if visitor is None:
            wanted = request.path_qs if request.method == "GET" else "/"
            raise _redirect(f"/login?{urlencode({'next': wanted})}")
        asked = PageRequest(request.path, request.match_info, request.query, NO_FORM, None, self._now_ms)
        try:
            asked = await self._asked(request, visitor)
            result = await route.handler(self._desk, visitor.actor, asked)
        except Exception as error:
            result = _error_page(request, error)
        if isinstance(result, Redirect):
            return _with_flash(_redirect(result.to), result.flash)
        return await self._rendered(request, visitor, asked, result)

    async def _asked(self, request: web.Request, visitor: Visitor) -> PageRequest:
        form = await self._gate.form(request) if request.method == "POST" else NO_FORM
        reference = request.query.get("org")
        org = await self._desk.org(visitor.actor, "viewer", reference) if reference else None
        return PageRequest(request.path, request.match_info, request.query, form, org, self._now_ms)

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        async def handler(desk: Desk, actor: Actor, asked: PageRequest) -> Page:
            raise NotFound("there is no such page")

        return await self._page(PageRoute("GET", request.path, handler), request)

    @property
    def _now_ms(self) -> int:
        return self._desk.clock.wall_ms()

    # From a page to an answer

    async def _rendered(
        self, request: web.Request, visitor: Visitor, asked: PageRequest, page: Page
    ) -> web.Response:
        orgs = await self._desk.orgs(visitor.actor)
        flash = unquote(request.cookies.get(FLASH_COOKIE, ""))
        values = {
            **self._common(request, asked),
            "actor": visitor.actor,
            "may": partial(_may, visitor.actor),
            "csrf": visitor.csrf,
            "orgs": orgs,
            "org_names": {org.org_id: org.name for org in orgs},
            "groups": _navigation(),
            "flash": flash,
            "page": page,
            **page.values,
        }
        response = self.html(page.template, values, page.status)
        if flash:
            response.del_cookie(FLASH_COOKIE, path="/")
        return response

    def html(self, template: str, values: Mapping[str, object], status: int = 200) -> web.Response:
        body = self._templates.get_template(template).render(values)
        return web.Response(status=status, text=body, content_type="text/html", headers=HEADERS)

    def _common(self, request: web.Request, asked: PageRequest) -> dict[str, object]:
        """What a template can use also where nobody is signed in."""
        return {
            "request": asked,
            "link": asked.link,
            "changed": asked.changed,
            "theme": _theme_of(request),
            "time": partial(text.time_tag, now_ms=asked.now_ms),
            "age": partial(text.age_tag, now_ms=asked.now_ms),
        }

    # What is no page

    async def _file(self, request: web.Request) -> web.Response:
        """A static file. Its address has the digest of them all, so that it may be kept for ever."""
        found = self._static.files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        body, content_type = found
        current = request.match_info["version"] == self._static.version
        caching = "public, max-age=31536000, immutable" if current else "no-cache"
        headers = {**HEADERS, "Cache-Control": caching}
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)

    async def _theme(self, request: web.Request) -> web.StreamResponse:
        """The toggle where no script runs; which colours a browser shows is worth no token."""
        form = await self._gate.form(request)
        back = _redirect(local_path(form.get("next", "/")))
        wanted = "light" if _theme_of(request) == "dark" else "dark"
        back.set_cookie(THEME_COOKIE, wanted, max_age=31_536_000, path="/", samesite="Strict")
        return back


def _may(actor: Actor, role: str, org_id: str | None) -> bool:
    return role in ("viewer", "editor", "admin") and actor.may(role, org_id)  # type: ignore[arg-type]


def _navigation() -> list[tuple[str, list[object]]]:
    paths = {route.path for route in ROUTES}
    shown = [(title, [entry for entry in entries if entry.path in paths]) for title, entries in GROUPS]
    return [(title, list(entries)) for title, entries in shown if entries]


def _error_page(request: web.Request, error: Exception) -> Page:
    """What is shown in place of the page; a fault of ours is in the log too, and not on the screen."""
    if isinstance(error, Forbidden):
        return Page("error.html", "Not allowed", {"message": str(error)}, status=403)
    if isinstance(error, NotFound):
        return Page("error.html", "Not found", {"message": str(error)}, status=404)
    if isinstance(error, web.HTTPException):
        return Page("error.html", "Not possible", {"message": error.reason}, status=error.status)
    if isinstance(error, StoreError):
        _log.error("%s %s: %s", request.method, request.path, error)
        return Page("error.html", "Not now", {"message": str(error)}, status=503)
    if isinstance(error, Refusal):
        return Page("error.html", "Not possible", {"message": str(error)}, status=400)
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    message = "A fault of the control plane itself. Its log says more."
    return Page("error.html", "Something went wrong", {"message": message}, status=500)


def _redirect(to: str) -> web.HTTPSeeOther:
    return web.HTTPSeeOther(to, headers=HEADERS)


def _with_flash(response: web.HTTPSeeOther, flash: str) -> web.HTTPSeeOther:
    if flash:
        response.set_cookie(
            FLASH_COOKIE, quote(flash), max_age=60, path="/", httponly=True, samesite="Strict"
        )
    return response


def _theme_of(request: web.Request) -> str:
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in ("light", "dark") else ""


# Templates and static files


@dataclass(frozen=True, slots=True)
class _Static:
    version: str
    files: Mapping[str, tuple[bytes, str]]  # by name: what it holds, and its type

    def address(self, name: str) -> str:
        assert name in self.files, name
        return f"/static/{self.version}/{name}"


def _read_static() -> _Static:
    files = {}
    digest = hashlib.sha256()
    for path in sorted((_HERE / "static").iterdir()):
        content_type = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
        files[path.name] = (path.read_bytes(), content_type or "application/octet-stream")
        digest.update(f"{path.name}\0{len(files[path.name][0])}\0".encode() + files[path.name][0])
    return _Static(digest.hexdigest()[:16], files)


def _environment(static: _Static) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(
        static=static.address,
        columns=charts.columns,
        sparkline=charts.sparkline,
        share=charts.share,
        percent=text.percent,
    )
    environment.filters["number"] = text.number
    return environment
