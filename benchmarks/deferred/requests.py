"""How many requests an API server has answered, from its own metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_ITSELF = "application/vnd.kubernetes.protobuf"
"""What the API server speaks to itself over its loopback connection, and none of the clients here."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What is asked for, as the metrics name it."""

    verb: str
    """``GET``, ``LIST``, ``WATCH``, ``POST``, ``PATCH``, ``DELETE``, ``DELETECOLLECTION``, …"""
    resource: str
    """Plural, such as ``pods``; empty for what is no resource, such as ``/metrics``."""
    subresource: str = ""

    def __str__(self) -> str:
        return " ".join((self.verb, "/".join(filter(None, (self.resource, self.subresource)))))


def parse(metrics: str) -> Counter[Kind]:
    """Requests answered since the API server's start, its own to itself left out.

    A watch and a followed log count when they end.

    Args:
        metrics: text of ``/metrics``, in Prometheus' format.
    """
    counts: Counter[Kind] = Counter()
    for sample in _SAMPLE.finditer(metrics):
        labels = dict(_LABEL.findall(sample["labels"]))
        if labels["contentType"] != _ITSELF:
            counts[Kind(labels["verb"], labels["resource"], labels["subresource"])] += int(float(sample["value"]))
    return counts


def between(before: Mapping[Kind, int], after: Mapping[Kind, int]) -> Counter[Kind]:
    """What was added; kinds of which nothing was added are left out."""
    return Counter({kind: more for kind, count in after.items() if (more := count - before.get(kind, 0))})
