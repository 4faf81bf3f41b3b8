"""The demo's report: one HTML file that needs nothing else, not even a network.

Drawn by hand as inline SVG: the plotting libraries that embed themselves add megabytes of script for two lines.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from demo_kit.chart import phases_chart, training_chart
from demo_kit.look_back import LookBack, problems

_TEMPLATE = "report.html.jinja"


def render(look: LookBack) -> str:
    """The report's HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(_TEMPLATE).render(
        result=look.result,
        outcome=look.outcome,
        problems=problems(look.outcome),
        chart=training_chart(look.losses, look.result["events"]),
        phases=phases_chart(look.outcome.phases),
    )
