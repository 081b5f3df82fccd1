"""Random small programs, mostly Python, composed from statement patterns and name pools."""

from __future__ import annotations

import random
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


def _names(rng: random.Random, noun: str | None = None) -> dict[str, str]:
    """What the patterns are filled with."""
    noun = noun or rng.choice(words.CODE_NOUNS)
    field, second = rng.sample(words.CODE_FIELDS, 2)
    verb, local = rng.choice(words.CODE_VERBS), rng.choice(words.CODE_LOCALS)
    constant, comparison = rng.randint(2, 250), rng.choice((">", "<", ">=", "<=", "!="))
    return {
        "verb": verb, "noun": noun, "many": plural(noun), "title": noun.capitalize(),
        "field": field, "second": second, "a_second": with_article(second), "local": local,
        "constant": str(constant), "tries": str(constant % 9 + 2), "comparison": comparison,
    }  # fmt: skip


def plural(noun: str) -> str:
    """The plural of an English noun of the code pool."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def with_article(noun: str) -> str:
    """The noun after `a` or `an`."""
    return f"an {noun}" if noun[0] in "aeio" else f"a {noun}"


_PATTERNS = tuple(
    text.strip("\n").split("\n", 3)
    for text in (
        """
{verb}_{many}({many}, limit={constant})
Return the {many} with {field} {comparison} limit.
{local} {noun} limit
    {local} = []
    for {noun} in {many}:
        if {noun}.{field} {comparison} limit:
            {local}.append({noun})
    return {local}""",
        """
{verb}_{field}({many})
Add up the {field} of all {many} that have {a_second}.
{local} {noun} {many}
    {local} = 0
    for {noun} in {many}:
        if {noun}["{second}"] is None:
            continue
        {local} += {noun}["{field}"] * {constant}
    return {local}""",
        """
count_by_{field}({many})
Count how many {many} share each {field}.
{local} {noun} key
    {local} = {{}}
    for {noun} in {many}:
        key = {noun}.{field}
        {local}[key] = {local}.get(key, 0) + 1
    return {local}""",
        """
find_{field}_{noun}({many})
Return the {noun} with the largest {field}, or None if there are no {many}.
{local} {noun} {many}
    {local} = None
    for {noun} in {many}:
        if {local} is None or {noun}.{field} > {local}.{field}:
            {local} = {noun}
    return {local}""",
        """
average_{field}({many}, default={constant})
Return the mean {field} of the {many}, or the default if there are none.
{local} {many} default
    if not {many}:
        return default
    {local} = sum({noun}.{field} for {noun} in {many})
    return {local} / len({many})""",
        """
check_{noun}({noun}, minimum={constant})
Raise ValueError if the {field} of the {noun} is below the minimum.
{local} {noun} minimum
    {local} = {noun}.{field}
    if {local} < minimum:
        raise ValueError("{field} of the {noun} is too small")
    print("{noun} is fine:", {local})
    return {noun}""",
        """
parse_{many}(text, separator=",")
Split each line of the text into {field} and {second}.
{local} {field} separator
    {local} = []
    for line in text.splitlines():
        {field}, {second} = line.split(separator)
        {local}.append(({field}.strip(), int({second}) + {constant}))
    return {local}""",
        """
{verb}_{noun}({noun}, attempts={tries})
Try to send the {noun} several times and report whether it worked.
{local} {noun} attempts
    {local} = 0
    while {local} < attempts:
        if {noun}.send():
            print("sent {noun} after", {local}, "tries")
            return True
        {local} += 1
    return False""",
        """
{many}_by_{field}({many})
Map each {field} to the list of {many} that have it.
{local} {noun} {many}
    {local} = {{}}
    for {noun} in sorted({many}):
        if {noun}.{second} {comparison} {constant}:
            {local}.setdefault({noun}.{field}, []).append({noun})
    return {local}""",
        """
describe_{noun}({noun})
Return a short text with the {field} and the {second} of the {noun}.
{local} {noun}
    {local} = "{title} with {field} "
    {local} += str({noun}.{field})
    if {noun}.{second} {comparison} {constant}:
        {local} += " and {second} " + str({noun}.{second})
    return {local}""",
    )
)
"""Head, summary, the names that could be renamed, and body, each to be filled with names."""


def _function(rng: random.Random, noun: str | None) -> Function:
    pattern = rng.choice(_PATTERNS)
    names = _names(rng, noun)
    head, summary, renamed, body = (part.format(**names) for part in pattern)
    return Function(head.split("(")[0], f"def {head}:", summary, body, tuple(renamed.split()))


def functions(rng: random.Random, n: int, *, noun: str | None = None) -> list[Function]:
    """`n` random Python functions with different names, all about `noun` if it is given."""
    found: dict[str, Function] = {}
    while len(found) < n:
        function = _function(rng, noun)
        found.setdefault(function.name, function)
    return list(found.values())


def class_code(rng: random.Random, n_methods: int) -> str:
    """A random Python class with `n_methods` methods besides `__init__`."""
    noun = _names(rng)["noun"]
    fields = rng.sample(words.CODE_FIELDS, 3)
    lines = [f"class {noun.capitalize()}{rng.choice(words.CODE_NOUNS).capitalize()}:"]
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


_JAVASCRIPT = (
    """  const {local} = {many}.filter((x) => x.{field} > {constant});
  return {local};""",
    """  let {local} = 0;
  for (const {noun} of {many}) {{
    {local} += {noun}.{field};
  }}
  return {local};""",
    """  if ({many}.length < {constant}) {{
    console.log("not enough {many}");
    return null;
  }}
  return {many}[0].{second};""",
)


def javascript(rng: random.Random, n: int) -> str:
    """`n` random JavaScript functions."""
    blocks = []
    for _ in range(n):
        names = _names(rng)
        body = rng.choice(_JAVASCRIPT).format(**names)
        function = f"{names['verb']}{names['many'].capitalize()}"
        blocks.append(f"function {function}({names['many']}) {{\n{body}\n}}")
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
