"""The head of an HTTP request, for servers that take few kinds of them."""

from __future__ import annotations

from elastic_runtime.errors import InvalidDocument


def parse_headers(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line, and the headers by their names in lower case.

    Raises:
        InvalidDocument: a header has no name, or comes twice.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or not name or name.lower() in headers:
            raise InvalidDocument("a header has no name, or comes twice")
        headers[name.lower()] = value.strip(" \t")
    return first, headers
