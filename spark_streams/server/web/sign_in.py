"""The page where people sign in, as a user of the log or with a token, and sign out."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spark_streams.server.http.authorization import Known
from spark_streams.server.http.requests import HttpError
from spark_streams.server.web.site import SIGN_IN, Pages


class SignIn(Pages):
    """Signing in and out."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(SIGN_IN, self._form),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]

    async def _form(self, request: Request) -> Response:
        if not self._site.config.signs_in:
            return self._site.go("/")
        return self._page(request, target=_own(request.query_params.get("to", "/")))

    def _page(self, request: Request, *, target: str, user: str = "", fault: str = "") -> Response:
        status = HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK
        config = self._site.config
        return self._site.page(
            request, "sign_in", known=None, status=status, fault=fault, target=target, user=user,
            users=bool(config.users), tokens=bool(config.tokens),
        )  # fmt: skip

    async def _sign_in(self, request: Request) -> Response:
        form = await self._site.form(request)
        target, user = _own(form.get("to", "/")), form.get("user", "")
        try:
            known = self._of(request, user, form.get("password", ""), form.get("token", ""))
        except HttpError as refusal:
            return self._page(request, target=target, user=user, fault=refusal.text)
        self._site.sessions.end(self._site.session_token(request))
        answer = self._site.go(target)
        self._set_cookie(request, answer, self._site.sessions.begin(known))
        return answer

    def _set_cookie(self, request: Request, answer: Response, token: str, **settings: Any) -> None:
        answer.set_cookie(
            self._site.cookie_name(request), token, httponly=True, samesite="strict",
            secure=self._site.config.tls_cert is not None, **settings,
        )  # fmt: skip

    def _of(self, request: Request, user: str, password: str, token: str) -> Known:
        authorization, config = self._site.authorization, self._site.config
        if token and config.tokens:
            return authorization.of_token(request, token)
        if user and config.users:
            return authorization.of_user(request, user, password)
        raise HttpError(HTTPStatus.UNAUTHORIZED, "nobody is named: fill in a user and its password, or a token")

    async def _sign_out(self, request: Request) -> Response:
        await self._site.form(request)
        self._site.sessions.end(self._site.session_token(request))
        answer = self._site.go(SIGN_IN, notice="signed-out")
        # Browsers take no ``__Host-`` cookie without Secure, not even one that removes it (RFC 6265bis, 5.7).
        self._set_cookie(request, answer, "", max_age=0)
        return answer


def _own(target: str) -> str:
    """Return where to go after signing in: a path of the log's window, not the address of another site."""
    return target if re.fullmatch(r"/(?![/\\])[!-~]*", target) else "/"
