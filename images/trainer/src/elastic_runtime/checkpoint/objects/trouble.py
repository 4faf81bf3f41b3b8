"""What may be said of an error of a cloud's library: not its own words, which can hold URLs, and these signatures."""

from __future__ import annotations

from elastic_runtime.printable import printable


def trouble(error: BaseException) -> str:
    """Its kind, and of what the system has said the reason."""
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
