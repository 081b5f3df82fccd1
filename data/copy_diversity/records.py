"""Random structured payloads: tables in several notations, log files, configuration files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from . import vocabulary as words
from .passages import date, email, full_name

Row = dict[str, str]

_COLUMNS: dict[str, Callable[[random.Random], str]] = {
    "name": full_name,
    "city": lambda rng: rng.choice(words.CITIES),
    "job": lambda rng: rng.choice(words.JOBS),
    "age": lambda rng: str(rng.randint(18, 90)),
    "email": lambda rng: email(rng, full_name(rng)),
    "item": lambda rng: f"{rng.choice(words.COLORS)} {rng.choice(words.THINGS)}",
    "price": lambda rng: f"{rng.randint(1, 400)}.{rng.randint(0, 99):02d}",
    "quantity": lambda rng: str(rng.randint(1, 60)),
    "date": date,
    "company": lambda rng: rng.choice(words.COMPANIES),
    "room": lambda rng: f"{rng.choice('ABCDEF')}{rng.randint(100, 499)}",
    "animal": lambda rng: rng.choice(words.ANIMALS),
    "status": lambda rng: rng.choice(("open", "closed", "waiting", "late", "paid", "lost")),
    "code": lambda rng: f"{rng.choice(words.HOST_WORDS).upper()}-{rng.randint(100, 9999)}",
    "phone": lambda rng: f"555-{rng.randint(1000, 9999)}",
    "food": lambda rng: rng.choice(words.FOODS),
}


def table(rng: random.Random, n_rows: int, n_columns: int) -> list[Row]:
    """`n_rows` records with the same `n_columns` random columns."""
    columns = rng.sample(list(_COLUMNS), n_columns)
    return [{column: _COLUMNS[column](rng) for column in columns} for _ in range(n_rows)]


def as_markdown(rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_csv(rows: list[Row]) -> str:
    """Comma-separated values with a header."""
    return "\n".join(",".join(cells) for cells in [list(rows[0]), *(r.values() for r in rows)])


def as_json(rows: list[Row]) -> str:
    """A JSON array, one object a line."""
    return "[\n" + ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows) + "\n]"


def as_list(rows: list[Row]) -> str:
    """A bulleted list with `key: value` pairs."""
    return "\n".join("- " + ", ".join(f"{key}: {row[key]}" for key in row) for row in rows)


def as_yaml(rows: list[Row]) -> str:
    """A YAML list of mappings."""
    return "\n".join("- " + "\n  ".join(f"{key}: {row[key]}" for key in row) for row in rows)


NOTATIONS: dict[str, Callable[[list[Row]], str]] = {
    "Markdown table": as_markdown,
    "CSV": as_csv,
    "JSON": as_json,
    "bullet list": as_list,
    "YAML": as_yaml,
}

_EVENTS = {
    "ERROR": (
        "connection to {host} refused after {n} ms",
        "could not open /var/{service}/{noun}_{n}.db",
        "{noun} {n} not found in {service}",
        "timeout while waiting for {host}:{n}",
        "out of memory in worker {n} of {service}",
        "checksum of {noun} {n} does not match",
    ),
    "WARN": (
        "queue of {service} holds {n} entries",
        "slow answer from {host}: {n} ms",
        "retry {n} for {noun} on {host}",
        "disk on {host} is {n} percent full",
    ),
    "INFO": (
        "{service} started on {host} with {n} workers",
        "user {n} signed in from {host}",
        "saved {n} {noun} records",
        "{noun} {n} sent to {host}",
        "cache of {service} cleared, {n} keys removed",
        "health check of {host} took {n} ms",
    ),
}


def log_lines(rng: random.Random, n: int) -> list[str]:
    """`n` lines of a service's log, at least one of them an error."""
    style, day = rng.randrange(3), rng.randint(10, 28)
    seconds = rng.randint(0, 80000)
    levels = ["ERROR", *rng.choices(list(_EVENTS), weights=(3, 2, 5), k=n - 1)]
    rng.shuffle(levels)
    lines = []
    for level in levels:
        seconds += rng.randint(1, 400 if n < 20 else 200)
        clock = f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        service = rng.choice(words.SERVICES)
        message = rng.choice(_EVENTS[level]).format(
            host=f"{rng.choice(words.HOST_WORDS)}-{rng.randint(1, 40):02d}",
            service=service,
            noun=rng.choice(words.CODE_NOUNS),
            n=rng.randint(3, 9000),
        )
        lines.append(
            (
                f"2024-0{day % 9 + 1}-{day} {clock} {level} {message}",
                f"[{clock}] {level} {service}: {message}",
                f"{level:5} {clock} {message}",
            )[style]
        )
    return lines


def config(rng: random.Random, n_settings: int) -> tuple[str, dict[str, str]]:
    """(file text, settings) of a random configuration file in one of four notations.

    Every setting name occurs once, so that an edit can name it.
    """
    names = rng.sample(words.SETTING_WORDS, min(n_settings, len(words.SETTING_WORDS)))
    settings = {name: _setting(rng, name) for name in names}
    sections = rng.sample(words.SERVICES, max(n_settings // 4, 1))
    style = rng.choice(("ini", "yaml", "env", "json"))
    if style == "json":
        body = ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in settings.items())
        return f"{{\n{body}\n}}", settings
    lines: list[str] = []
    for index, (name, value) in enumerate(settings.items()):
        if style != "env" and index % 4 == 0 and index // 4 < len(sections):
            section = sections[index // 4]
            lines.append(f"[{section}]" if style == "ini" else f"{section}:")
        prefix = f"{sections[0].upper()}_"
        lines.append(
            {
                "ini": f"{name} = {value}",
                "yaml": f"  {name}: {value}",
                "env": f"{prefix}{name.upper()}={value}",
            }[style]
        )
    return "\n".join(lines), settings


def _setting(rng: random.Random, name: str) -> str:
    if name in ("host", "region"):
        return f"{rng.choice(words.HOST_WORDS)}-{rng.randint(1, 30)}.example.org"
    if name in ("debug", "compression"):
        return rng.choice(("true", "false"))
    if name in ("log_level", "theme", "language", "encoding"):
        return rng.choice(words.HOST_WORDS)
    return str(rng.randint(1, 5000))
