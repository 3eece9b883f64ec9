"""Who may ask: the right host, no other site, and the token where there is one; and what every answer says."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response

from factformer.serve.arrays import write_json
from factformer.serve.limits import Refusal, one_line

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "factformer_token"
OPEN = ("/health",)
"""What needs no token."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gate:
    """Around the application: checks each request before it, and adds headers to each answer.

    On a loopback address only names of this computer are served. Otherwise any page in the user's browser could
    lead a name of its own here and read the answers.
    """

    def __init__(self, app: App, token: str | None, local: bool) -> None:
        self.app, self.token, self.local = app, token, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        await (self.app if refused is None else refused)(scope, receive, send_guarded)

    def _refused(self, scope: Scope) -> Response | None:
        """The answer to a request that does not get through."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.local and not is_loopback(host_name(host)):
            return refusal_response(Refusal(403, f"this server is for this computer alone, not for {host!r}"))
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return refusal_response(Refusal(403, f"requests of pages from {origin!r} are not served"))
        if self.token is None or scope["path"] in OPEN or self._has_token(headers):
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["method"] == "GET" and any(self._is_token(value) for value in asked):
            response = RedirectResponse("/" + scope["path"].lstrip("/"), 303)  # never to another host
            response.set_cookie(COOKIE, asked[0], httponly=True, samesite="strict")
            return response
        line = "a token is needed: send the header 'Authorization: Bearer TOKEN', or open /?token=TOKEN in a browser"
        return refusal_response(Refusal(401, line, {"WWW-Authenticate": "Bearer"}))

    def _has_token(self, headers: Headers) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(value.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, value: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(value.encode("utf-8", "surrogateescape"), self.token.encode())


def refusal_response(refusal: Refusal) -> Response:
    """One line as JSON; what could not be read to its end ends the connection."""
    headers = dict(refusal.headers)
    if refusal.status in (408, 413):
        headers["Connection"] = "close"
    body = write_json({"error": one_line(refusal.line)})
    return Response(body, refusal.status, headers, "application/json")


def host_name(host: str) -> str:
    """The name in the header ``Host``, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether a name or address means this computer, and nobody else can reach it there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
