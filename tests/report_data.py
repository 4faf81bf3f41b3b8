"""What a report has in it: the JSON that its script draws."""

from __future__ import annotations

import json
import re
from typing import Any

_REPORT = re.compile(r'<script type="application/json" id="report">([^<]*)</script>')


def data_of(html: str) -> dict[str, Any]:
    """The page must have exactly one such element."""
    [text] = _REPORT.findall(html)
    data: dict[str, Any] = json.loads(text, parse_constant=lambda name: 1 / 0)
    return data
