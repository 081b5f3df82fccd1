"""Random small programs, mostly Python, composed from statement patterns and name pools."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import vocabulary as words


@dataclass(frozen=True)
class Function:
    """A random Python function: its parts, and the local names that could be renamed."""

    name: str
    signature: str
    summary: str
    body: str
    names: tuple[str, ...]

    def code(self, *, documented: bool = False) -> str:
        """The whole function, with its docstring if asked for."""
        doc = f'    """{self.summary}"""\n' if documented else ""
        return f"{self.signature}\n{doc}{self.body}"

    def stub(self) -> str:
        """The signature and docstring, without a body."""
        return f'{self.signature}\n    """{self.summary}"""'


@dataclass(frozen=True)
class _Names:
    verb: str
    noun: str
    many: str
    field: str
    second_field: str
    local: str
    constant: int
    comparison: str

    @classmethod
    def draw(cls, rng: random.Random, noun: str | None = None) -> _Names:
        noun = noun or rng.choice(words.CODE_NOUNS)
        field, second_field = rng.sample(words.CODE_FIELDS, 2)
        return cls(
            rng.choice(words.CODE_VERBS),
            noun,
            plural(noun),
            field,
            second_field,
            rng.choice(words.CODE_LOCALS),
            rng.randint(2, 250),
            rng.choice((">", "<", ">=", "<=", "!=")),
        )


def plural(noun: str) -> str:
    """The plural of an English noun of the code pool."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def with_article(noun: str) -> str:
    """The noun after `a` or `an`."""
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


def _filter(n: _Names) -> Function:
    return Function(
        f"{n.verb}_{n.many}",
        f"def {n.verb}_{n.many}({n.many}, limit={n.constant}):",
        f"Return the {n.many} with {n.field} {n.comparison} limit.",
        f"    {n.local} = []\n    for {n.noun} in {n.many}:\n"
        f"        if {n.noun}.{n.field} {n.comparison} limit:\n"
        f"            {n.local}.append({n.noun})\n    return {n.local}",
        (n.local, n.noun, "limit"),
    )


def _total(n: _Names) -> Function:
    return Function(
        f"{n.verb}_{n.field}",
        f"def {n.verb}_{n.field}({n.many}):",
        f"Add up the {n.field} of all {n.many} that have {with_article(n.second_field)}.",
        f"    {n.local} = 0\n    for {n.noun} in {n.many}:\n"
        f'        if {n.noun}["{n.second_field}"] is None:\n            continue\n'
        f'        {n.local} += {n.noun}["{n.field}"] * {n.constant}\n    return {n.local}',
        (n.local, n.noun, n.many),
    )


def _count(n: _Names) -> Function:
    return Function(
        f"count_by_{n.field}",
        f"def count_by_{n.field}({n.many}):",
        f"Count how many {n.many} share each {n.field}.",
        f"    {n.local} = {{}}\n    for {n.noun} in {n.many}:\n        key = {n.noun}.{n.field}\n"
        f"        {n.local}[key] = {n.local}.get(key, 0) + 1\n    return {n.local}",
        (n.local, n.noun, "key"),
    )


def _largest(n: _Names) -> Function:
    return Function(
        f"find_{n.field}_{n.noun}",
        f"def find_{n.field}_{n.noun}({n.many}):",
        f"Return the {n.noun} with the largest {n.field}, or None if there are no {n.many}.",
        f"    {n.local} = None\n    for {n.noun} in {n.many}:\n"
        f"        if {n.local} is None or {n.noun}.{n.field} > {n.local}.{n.field}:\n"
        f"            {n.local} = {n.noun}\n    return {n.local}",
        (n.local, n.noun, n.many),
    )


def _average(n: _Names) -> Function:
    return Function(
        f"average_{n.field}",
        f"def average_{n.field}({n.many}, default={n.constant}):",
        f"Return the mean {n.field} of the {n.many}, or the default if there are none.",
        f"    if not {n.many}:\n        return default\n"
        f"    {n.local} = sum({n.noun}.{n.field} for {n.noun} in {n.many})\n"
        f"    return {n.local} / len({n.many})",
        (n.local, n.many, "default"),
    )


def _check(n: _Names) -> Function:
    return Function(
        f"check_{n.noun}",
        f"def check_{n.noun}({n.noun}, minimum={n.constant}):",
        f"Raise ValueError if the {n.field} of the {n.noun} is below the minimum.",
        f"    {n.local} = {n.noun}.{n.field}\n    if {n.local} < minimum:\n"
        f'        raise ValueError("{n.field} of the {n.noun} is too small")\n'
        f'    print("{n.noun} is fine:", {n.local})\n    return {n.noun}',
        (n.local, n.noun, "minimum"),
    )


def _parse(n: _Names) -> Function:
    return Function(
        f"parse_{n.many}",
        f'def parse_{n.many}(text, separator=","):',
        f"Split each line of the text into {n.field} and {n.second_field}.",
        f"    {n.local} = []\n    for line in text.splitlines():\n"
        f"        {n.field}, {n.second_field} = line.split(separator)\n"
        f"        {n.local}.append(({n.field}.strip(), int({n.second_field}) + {n.constant}))\n"
        f"    return {n.local}",
        (n.local, n.field, "separator"),
    )


def _retry(n: _Names) -> Function:
    return Function(
        f"{n.verb}_{n.noun}",
        f"def {n.verb}_{n.noun}({n.noun}, attempts={n.constant % 9 + 2}):",
        f"Try to send the {n.noun} several times and report whether it worked.",
        f"    {n.local} = 0\n    while {n.local} < attempts:\n        if {n.noun}.send():\n"
        f'            print("sent {n.noun} after", {n.local}, "tries")\n            return True\n'
        f"        {n.local} += 1\n    return False",
        (n.local, n.noun, "attempts"),
    )


def _mapping(n: _Names) -> Function:
    return Function(
        f"{n.many}_by_{n.field}",
        f"def {n.many}_by_{n.field}({n.many}):",
        f"Map each {n.field} to the list of {n.many} that have it.",
        f"    {n.local} = {{}}\n    for {n.noun} in sorted({n.many}):\n"
        f"        if {n.noun}.{n.second_field} {n.comparison} {n.constant}:\n"
        f"            {n.local}.setdefault({n.noun}.{n.field}, []).append({n.noun})\n"
        f"    return {n.local}",
        (n.local, n.noun, n.many),
    )


def _format(n: _Names) -> Function:
    return Function(
        f"describe_{n.noun}",
        f"def describe_{n.noun}({n.noun}):",
        f"Return a short text with the {n.field} and the {n.second_field} of the {n.noun}.",
        f'    {n.local} = "{n.noun.capitalize()} with {n.field} "\n'
        f"    {n.local} += str({n.noun}.{n.field})\n"
        f"    if {n.noun}.{n.second_field} {n.comparison} {n.constant}:\n"
        f'        {n.local} += " and {n.second_field} " + str({n.noun}.{n.second_field})\n'
        f"    return {n.local}",
        (n.local, n.noun),
    )


_PATTERNS: tuple[Callable[[_Names], Function], ...] = (
    *(_filter, _total, _count, _largest, _average),
    *(_check, _parse, _retry, _mapping, _format),
)


def functions(rng: random.Random, n: int, *, noun: str | None = None) -> list[Function]:
    """`n` random Python functions with different names, all about `noun` if it is given."""
    found: dict[str, Function] = {}
    while len(found) < n:
        function = rng.choice(_PATTERNS)(_Names.draw(rng, noun))
        found.setdefault(function.name, function)
    return list(found.values())


def class_code(rng: random.Random, n_methods: int) -> str:
    """A random Python class with `n_methods` methods besides `__init__`."""
    names = _Names.draw(rng)
    fields = rng.sample(words.CODE_FIELDS, 3)
    lines = [f"class {names.noun.capitalize()}{rng.choice(words.CODE_NOUNS).capitalize()}:"]
    lines += [f"    def __init__(self, {', '.join(fields)}):"]
    lines += [f"        self.{field} = {field}" for field in fields]
    for verb in rng.sample(words.CODE_VERBS, n_methods):
        field, other = rng.sample(fields, 2)
        body = rng.choice(
            (
                f"return self.{field} * {rng.randint(2, 90)} + self.{other}",
                f"self.{field} += self.{other} // {rng.randint(2, 90)}",
                f"return self.{field} if self.{other} > {rng.randint(2, 90)} else None",
                f'print("{field} is now", self.{field}, "of", self.{other})',
            )
        )
        lines += ["", f"    def {verb}_{field}(self):", f"        {body}"]
    return "\n".join(lines)


def javascript(rng: random.Random, n: int) -> str:
    """`n` random JavaScript functions."""
    blocks = []
    for _ in range(n):
        names = _Names.draw(rng)
        function = f"{names.verb}{names.many.capitalize()}"
        body = rng.choice(
            (
                f"  const {names.local} = {names.many}.filter((x) => x.{names.field} "
                f"> {names.constant});\n  return {names.local};",
                f"  let {names.local} = 0;\n  for (const {names.noun} of {names.many}) {{\n"
                f"    {names.local} += {names.noun}.{names.field};\n  }}\n  return {names.local};",
                f"  if ({names.many}.length < {names.constant}) {{\n"
                f'    console.log("not enough {names.many}");\n    return null;\n  }}\n'
                f"  return {names.many}[0].{names.second_field};",
            )
        )
        blocks.append(f"function {function}({names.many}) {{\n{body}\n}}")
    return "\n\n".join(blocks)


def program(rng: random.Random, n_functions: int) -> str:
    """A random Python program: an import or constant now and then, then functions or a class."""
    parts = []
    if rng.random() < 0.4:
        constant = f"{rng.choice(words.CODE_FIELDS)}_{rng.choice(('LIMIT', 'DEFAULT', 'STEP'))}"
        parts.append(f"{constant.upper()} = {rng.randint(2, 900)}")
    documented = rng.random() < 0.5
    parts += [function.code(documented=documented) for function in functions(rng, n_functions)]
    return "\n\n".join(parts)
