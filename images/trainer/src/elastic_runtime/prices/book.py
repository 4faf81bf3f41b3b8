"""A price book: what machines cost an hour. A file in TOML, which people write; for its form see docs/cost.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable

SHIPPED = Path(__file__).resolve().parent / "prices.toml"
"""An example, for orientation."""
LARGEST_BOOK = 1024 * 1024
"""Bytes."""
MOST_PRICES = 10_000
_LONGEST_NAME = 100
_LEAST, _MOST = Decimal("0.000001"), Decimal(100_000)
"""Dollars an hour."""
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one machine, in US dollars an hour."""

    cloud: str
    instance: str
    region: str
    on_demand: Decimal
    spot: Decimal
    date: date
    """When it was looked up."""
    source: str

    @property
    def name(self) -> str:
        """``CLOUD/INSTANCE``, unique in a price book."""
        return f"{self.cloud}/{self.instance}"


def read_prices(path: Path = SHIPPED) -> Mapping[str, Price]:
    """Prices by :attr:`Price.name`.

    Raises:
        InvalidDocument: the file is no price book; says what is wrong where.
    """
    name = printable(path)
    try:
        is_file = path.is_file()
    except (OSError, ValueError) as error:  # Its folder may not be entered, its name is too long or has a NUL.
        raise InvalidDocument(f"{name}: cannot be read as a price book: {printable(error)}") from error
    if not is_file:  # A pipe would be waited for.
        raise InvalidDocument(f"{name}: cannot be read as a price book: the file does not exist")
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_BOOK + 1)
    except OSError as error:
        raise InvalidDocument(f"{name}: cannot be read as a price book: {printable(error)}") from error
    if len(raw) > LARGEST_BOOK:
        raise InvalidDocument(f"{name}: is larger than {LARGEST_BOOK} bytes; leave out what you do not use")
    return parse_prices(raw, name)


def parse_prices(raw: bytes, name: str) -> Mapping[str, Price]:
    """Parse prices as :func:`read_prices`, from the file's bytes. ``name`` is the file's, for messages."""
    try:
        clouds = tomllib.loads(raw.decode(), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidDocument(f"{name}: cannot be read as a price book: {printable(error)}") from error
    book: dict[str, Price] = {}
    clouds_of: dict[str, str] = {}
    for cloud, instances in clouds.items():
        for instance, entry in instances.items() if isinstance(instances, dict) else ():
            price = _price(name, cloud, instance, entry)
            # Nodes tell their instance type, and not their cloud.
            if (other := clouds_of.setdefault(instance, cloud)) != cloud:
                problem = f"{printable(instance)} is in it for {printable(other)} and for {printable(cloud)}"
                raise InvalidDocument(f"{name}: {problem}; write a book for each")
            book[price.name] = price
            if len(book) > MOST_PRICES:
                raise InvalidDocument(f"{name}: has more than {MOST_PRICES} prices; leave out what you do not use")
    if not book:
        raise InvalidDocument(f'{name}: no prices; write tables [cloud."instance type"]')
    return book


def _price(name: str, cloud: str, instance: str, entry: object) -> Price:
    where = f"{name}: [{printable(cloud, _LONGEST_NAME)}.{printable(instance, _LONGEST_NAME)}]"
    if not isinstance(entry, dict):
        raise InvalidDocument(f"{where} is not a table")
    if len(cloud) > _LONGEST_NAME or len(instance) > _LONGEST_NAME:
        raise InvalidDocument(f"{where} has a name of more than {_LONGEST_NAME} characters")
    for key in ("on_demand", "spot", "region", "date", "source"):
        if key not in entry:
            raise InvalidDocument(f"{where} has no {key!r}")
    on_demand, spot = (_dollars(where, key, entry[key]) for key in ("on_demand", "spot"))
    region, source, when = entry["region"], entry["source"], entry["date"]
    if not isinstance(region, str) or not isinstance(source, str):
        raise InvalidDocument(f"{where}: region and source are texts")
    if type(when) is not date:
        raise InvalidDocument(f"{where}: write a date as 2026-11-21")
    return Price(cloud, instance, printable(region), on_demand, spot, when, printable(source))


def _dollars(where: str, key: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise InvalidDocument(f"{where}: {key} is not a number; write dollars an hour, as in 0.526")
    if isinstance(value, int) and value > _MOST:  # before it is converted: it may have thousands of digits
        raise InvalidDocument(f"{where}: {key} is not between {_LEAST:f} and {_MOST} dollars an hour")
    price = Decimal(value)
    if not price.is_finite() or not _LEAST <= price <= _MOST:
        raise InvalidDocument(f"{where}: {key} is not between {_LEAST:f} and {_MOST} dollars an hour")
    if len(price.as_tuple().digits) > _DIGITS:
        raise InvalidDocument(f"{where}: {key} has more than {_DIGITS} digits")
    return price


def choose_price(book: Mapping[str, Price], name: str) -> Price:
    """The price of that name, ``cloud/instance type``.

    Raises:
        InvalidSettings: it is not in the book.
    """
    if name not in book:
        raise InvalidSettings("instance", f"{name} is not in the price book", f"Choose from {', '.join(book)}")
    return book[name]
