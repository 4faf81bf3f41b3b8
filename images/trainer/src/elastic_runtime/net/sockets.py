"""TCP connections whose other end may vanish without a word, with its machine; the address of this one's name."""

from __future__ import annotations

import socket


def end_when_silent(sock: socket.socket, seconds: float) -> None:
    """Have the kernel end the connection when its other end does not answer any more (tcp(7); Linux).

    A machine that vanishes sends no end of its connections, and TCP alone takes a quarter of an hour to notice. The
    kernel of one that is there answers probes even when its process is busy, stopped or swapped out.

    Args:
        sock: a TCP socket.
        seconds: of silence, at least 1: nothing sent is acknowledged, or no probe of an idle connection is answered.

    Raises:
        OSError: it is not a TCP socket.
    """
    idle, interval = max(1, round(seconds / 3)), max(1, round(seconds / 12))
    options = {
        "TCP_USER_TIMEOUT": round(seconds * 1000),
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": max(1, (round(seconds) - idle) // interval),
    }
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def named_address() -> str:
    """Return the first address that this machine's own name resolves to; empty: it does not."""
    return next(iter(named_addresses()), "")


def named_addresses() -> list[str]:
    """Return all addresses that this machine's own name resolves to. Blocks while a name server is asked."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(address[0]) for *_, address in found]


def host_and_port(host: str, port: int) -> str:
    """Return ``HOST:PORT``, of an address of IPv6 with brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_and_port(text: str) -> tuple[str, int]:
    """Take apart what :func:`host_and_port` has put together. Raise ValueError where there is no port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
