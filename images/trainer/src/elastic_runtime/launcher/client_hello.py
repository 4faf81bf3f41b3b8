"""Whether somebody who connects begins TLS, found out before TLS costs anything.

A record of TLS says its type, its version and its length in five bytes (RFC 8446, section 5.1), and the first record of
a connection holds the ClientHello. The system is asked to wake this process when all of that record is there
(``SO_RCVLOWAT``, socket(7)); it is looked at and left in the socket, for TLS to read.
"""

from __future__ import annotations

import asyncio
import socket

from elastic_runtime.errors import InvalidDocument

HEADER = 5
"""Bytes of a record's header."""
HANDSHAKE, CLIENT_HELLO = 22, 1
"""The record's type, and its content's."""
LEAST, MOST = 40, 16 * 1024
"""Bytes of a record that can hold a ClientHello."""


async def client_hello(sock: socket.socket) -> bytes:
    """Return a possible ClientHello, once the whole record is in the non-blocking socket.

    Raises:
        InvalidDocument: what has come cannot be the begin of one, or no more comes.
        OSError: the connection is lost.
    """
    header = await _peek(sock, HEADER)
    length = int.from_bytes(header[3:5], "big")
    if header[0] != HANDSHAKE or header[1] != 3 or not LEAST <= length <= MOST:
        raise InvalidDocument("it does not begin TLS")
    record = await _peek(sock, HEADER + length)
    if record[HEADER] != CLIENT_HELLO:
        raise InvalidDocument("it begins TLS with something else than a ClientHello")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return record


async def _peek(sock: socket.socket, size: int) -> bytes:
    """That many bytes, once they are there. Raises as :func:`client_hello` does."""
    try:
        if len(found := sock.recv(size, socket.MSG_PEEK)) == size:
            return found
    except BlockingIOError:
        pass
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    await _readable(sock.fileno())
    found = sock.recv(size, socket.MSG_PEEK)
    if len(found) < size:
        raise InvalidDocument("it closed the connection before it sent anything")
    return found


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    loop.add_reader(descriptor, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(descriptor)
