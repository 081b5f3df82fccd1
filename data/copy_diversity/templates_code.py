"""Copy-heavy CopyDiversity families whose payload is program code."""

from __future__ import annotations

import random
import re

from . import vocabulary as words
from .layout import copies, jittered, lay_out, scaled
from .programs import class_code, functions, javascript, program


def _code(rng: random.Random, difficulty: float) -> tuple[str, str]:
    """(program, fence language) of a length that fits the difficulty."""
    kind = rng.random()
    if kind < 0.2:
        return javascript(rng, jittered(rng, difficulty, 1, 5)), "javascript"
    if kind < 0.4:
        return class_code(rng, min(jittered(rng, difficulty, 2, 8), 10)), "python"
    return program(rng, jittered(rng, difficulty, 1, 5)), "python"


def _edit(rng: random.Random, code: str) -> str:
    """An edit that fits `code`, in words."""
    numbers = re.findall(r"\b\d+\b", code)
    strings = re.findall(r'"([^"\n]{6,})"', code)
    names = re.findall(r"(?:def|function) (\w+)\(", code)
    edits = [
        f"Add the line `# version {rng.randint(1, 9)}.{rng.randint(0, 9)}` at the top.",
        f"Add a print of the word {rng.choice(words.HOST_WORDS)} as the first line of "
        f"`{rng.choice(names)}`.",
        f"Add a comment that says {rng.choice(words.SERVICES)} above `{rng.choice(names)}`.",
    ]
    if numbers:
        edits += [f"Change the number {rng.choice(numbers)} to {rng.randint(251, 999)}."] * 3
    if strings:
        new = f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.CODE_NOUNS)}"
        edits += [f'Replace the text "{rng.choice(strings)}" with "{new}".'] * 2
    return rng.choice(edits)


@copies(
    "{edit} Keep everything else the same and show the whole code.",
    "Make this change to the code: {edit} Print the complete program again.",
    "Please edit the code. {edit} Do not change any other line.",
    "Rewrite the program with one small change. {edit}",
    "Can you update this for me? {edit} Return the full code.",
    "{edit} Give me the full updated code without explanation.",
    "I need the same code again, but: {edit}",
)
def _code_edit(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    code, language = _code(rng, difficulty)
    edits = dict.fromkeys(_edit(rng, code) for _ in range(scaled(difficulty, 1, 3)))
    return [lay_out(rng, wording.format(edit=" ".join(edits)), code, kind="code", fence=language)]


@copies(
    "Rename `{old}` to `{new}` everywhere and show the whole code.",
    "Change the name `{old}` to `{new}`. Keep the rest of the code the same.",
    "Refactor: `{old}` should be called `{new}`. Print the full code.",
    "Please replace every `{old}` with `{new}` in this code.",
    "The name `{old}` is not clear. Use `{new}` instead and write the code again.",
    "Write this code again with `{new}` instead of `{old}`.",
)
def _code_rename(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    chosen = functions(rng, jittered(rng, difficulty, 1, 5))
    code = "\n\n".join(function.code() for function in chosen)
    target = rng.choice(chosen)
    candidates = (target.name, *target.names)
    fresh = f"{rng.choice(words.HOST_WORDS)}_{rng.choice(words.CODE_NOUNS)}"
    instruction = wording.format(old=rng.choice(candidates), new=fresh)
    return [lay_out(rng, instruction, code, kind="code", fence="python")]


@copies(
    "Add {what}. Keep the code the same.",
    "Please add {what} and show the complete code.",
    "Take this code and add {what}.",
    "Document this code: add {what}, but do not change how it works.",
    "Rewrite the code below. The only change: add {what}.",
    "Return the same code, and add {what}.",
)
def _code_annotate(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    chosen = functions(rng, jittered(rng, difficulty, 1, 5))
    what = rng.choice(
        (
            "a short docstring to each function",
            "a comment above each line",
            "type hints to each function",
            "a print statement at the start of each function",
            "a comment at the end of each function",
        )
    )
    code = "\n\n".join(function.code() for function in chosen)
    return [lay_out(rng, wording.format(what=what), code, kind="code", fence="python")]


@copies(
    "Complete the function `{name}`.",
    "Finish the last function and show the whole program.",
    "Write the missing body of `{name}`. Repeat the signature and the docstring.",
    "Implement `{name}` as its docstring says.",
    "The function `{name}` has no body yet. Write the full function.",
    "Fill in the code for `{name}` and print the complete code.",
)
def _code_complete(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    *given, target = functions(rng, jittered(rng, difficulty, 1, 5))
    code = "\n\n".join([*(function.code() for function in given), target.stub()])
    return [lay_out(rng, wording.format(name=target.name), code, kind="code", fence="python")]


_OPERATORS = {" > ": " < ", " < ": " > ", " += ": " = ", " is None": " is not None"}


@copies(
    "There is a bug in this code. {hint} Fix it and show the whole code.",
    "{hint} Please correct the code and print all of it.",
    "Find and fix the mistake. {hint}",
    "Correct this program. {hint} Do not change the other lines.",
    "My code does not work. {hint} Write the corrected version.",
    "{hint} Give me the complete corrected code first, then one sentence about the bug.",
)
def _code_bug_fix(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    chosen = functions(rng, jittered(rng, difficulty, 1, 5))
    target = rng.choice(chosen)
    present = [operator for operator in _OPERATORS if operator in target.body]
    good = rng.choice(present) if present else "return"
    bad = _OPERATORS.get(good, "print")
    code = "\n\n".join(
        function.code(documented=True).replace(good, bad, 1)
        if function is target
        else function.code(documented=True)
        for function in chosen
    )
    hint = f"In `{target.name}`, one line should use `{good.strip()}` instead of `{bad.strip()}`."
    if rng.random() < 0.3 + 0.5 * difficulty:
        hint = f"`{target.name}` gives a wrong answer for {rng.randint(3, 99)} elements."
    return [lay_out(rng, wording.format(hint=hint), code, kind="code", fence="python")]
