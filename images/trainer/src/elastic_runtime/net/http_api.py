"""Requests to the HTTP API of a scheduler: bounded in time and size, and for one address alone. Everything blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from elastic_runtime.errors import ClusterUnavailable
from elastic_runtime.printable import printable

TIMEOUT = 30.0
"""Seconds for an answer."""


class HttpApi:
    """One server.

    Args:
        name: what answers there, for messages.
        address: ``http://HOST:PORT`` or ``https://HOST:PORT``.
        longest: bytes of an answer.
    """

    def __init__(self, name: str, address: str, longest: int) -> None:
        self.address = address
        self._who, self._longest = f"{name} at {address}", longest
        self._opener = build_opener(_NoRedirect)

    def __str__(self) -> str:
        return self._who

    def call(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> tuple[int, str]:
        """Send a JSON document, or nothing.

        Args:
            method: of HTTP.
            path: on that server, quoted.
            headers: with what gives access; none of it is in a message.
            body: the document, unless it is None.

        Returns:
            The status, also that of an error or a redirection, and the text of the answer.

        Raises:
            ClusterUnavailable: the server does not answer in time, or answers more than ``longest``.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(  # noqa: S310  # http or https: the address was checked before
                self.address + path, data, {"Content-Type": "application/json", **headers}, method=method
            )
            try:
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    status, said = answer.status, answer.read(self._longest + 1)
            except HTTPError as error:
                with error:
                    status, said = error.code, error.read(self._longest + 1)
        except (OSError, HTTPException, ValueError) as error:
            # A header that cannot be sent is in the text of its error, and it may be a token.
            why = printable(error, 200) if isinstance(error, OSError) else type(error).__name__
            raise ClusterUnavailable(f"{self} does not answer: {why}") from None
        if len(said) > self._longest:
            raise ClusterUnavailable(f"{self} answers more than can be read")
        return status, said.decode(errors="replace")


class _NoRedirect(HTTPRedirectHandler):
    """A token is for the address that was named, and no other."""

    def redirect_request(self, *_arguments: object) -> None:
        return None
