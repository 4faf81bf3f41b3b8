"""Text about an error of a cloud's library that is safe to log: its own message can hold URLs with signatures."""

from __future__ import annotations

from elastic_runtime.printable import printable


def error_text(error: BaseException) -> str:
    """Return its type, and the reason that the operating system gave."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < 20:
        each = waiting.pop()
        if not isinstance(each, BaseException) or each in seen:
            continue
        seen.append(each)
        if isinstance(each, OSError) and each.strerror:
            return printable(f"{type(error).__name__}: {each.strerror}")
        waiting += [each.__context__, each.__cause__, *each.args]
        waiting += [getattr(each, name, None) for name in ("reason", "inner_exception")]
    return type(error).__name__
