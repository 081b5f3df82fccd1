"""Accidental-repetition CopyDiversity families made of symbols: algebra, sums, code.

Variable names, number patterns and code idioms come back on every line, with something new each
time, as in the paper's example of a derivation that keeps naming `n`.
"""

from __future__ import annotations

import random

from . import vocabulary as words
from .layout import repeats, scaled
from .passages import full_name, with_articles
from .programs import plural, with_article


def _equation(rng: random.Random, x: str, y: str) -> str:
    a, b, c, d = (rng.randint(2, 40) for _ in range(4))
    return rng.choice(
        (
            f"{a}{x} + {b} = {c}{x} - {d}",
            f"{a}({x} - {b}) = {c}({x} + {d})",
            f"{x}^2 + {a}{x} - {b} = {c}",
            f"{x}/{a} + {b} = {c} - {x}/{d}",
            f"{a}{x} + {b}{y} = {c} and {y} = {d}{x}",
            f"{a}{x} - {b}{y} = {c} and {x} + {y} = {d}",
        )
    )


@repeats(
    "Solve {equations} for {x}. Show every step.",
    "Find {x} step by step and explain each step: {equations}.",
    "Isolate {x} in {equations} and explain what you did.",
    "Put {x} = {k} into {equations}, simplify, and say if it can be true.",
    "Show how to get {x} from {equations}.",
    "Work through this algebra: {equations}. What is {x}?",
)
def _derivation(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    x, y = rng.sample("abhkmnpqrstuvwxyz", 2)
    name = full_name(rng)
    meanings = [
        f"{x} is the number of {rng.choice(words.PLURALS)} of {name}.",
        f"{y} counts the {rng.choice(words.PLURALS)} in the {rng.choice(words.PLACES)}.",
        with_articles(f"{name} is a {rng.choice(words.JOBS)}")
        + f" from {rng.choice(words.CITIES)} and likes algebra.",
        f"Both {x} and {y} are positive and smaller than {rng.randint(50, 900)}.",
        f"At the end, say what the result means for {name}.",
        f"Use the letter {x} in every step.",
    ]
    equations = "; ".join(_equation(rng, x, y) for _ in range(scaled(difficulty, 1, 3)))
    request = wording.format(x=x, y=y, k=rng.randint(2, 12), equations=equations)
    return [" ".join([request, *rng.sample(meanings, scaled(difficulty, 0, 4))])]


@repeats(
    "Write {task}.",
    "Please list {task}. One line each.",
    "I need {task}.",
    "Work out {task} and show each calculation.",
    "Make a list of {task}.",
    "Can you write {task}, with the calculation on each line?",
)
def _arithmetic_pattern(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    n, k, start = rng.randint(3, 49), rng.randint(2, 19), rng.randint(1, 80)
    rows = rng.randint(8, 14)
    task = rng.choice(
        (
            f"the multiplication table of {n}, from {k} to {k + rows}",
            f"the numbers from {start} in steps of {k}, {rows} of them",
            f"the squares of the numbers from {k} to {k + rows}",
            f"what {n} plus {start} is, then {n} plus {start + k}, and so on, {rows} lines",
            f"{start} divided by {k}, then {start + n} divided by {k}, and so on, {rows} lines",
            f"the price of 1 to {rows} {rng.choice(words.PLURALS)} at {n} dollars each",
            f"the age of {full_name(rng)}, now {n}, in each of the next {rows} years",
        )
    )
    notes = [
        f"{full_name(rng)} needs it for the {rng.choice(words.PLACES)}.",
        f"It is for a {rng.choice(words.JOBS)} in {rng.choice(words.CITIES)}.",
        f"Put a {rng.choice(words.COLORS)} {rng.choice(words.THINGS)} into the last line.",
        f"After that, explain the pattern to {rng.choice(words.FIRST_NAMES)}.",
        f"I will check it on {rng.choice(words.WEEKDAYS)}.",
    ]
    chosen = rng.sample(notes, scaled(difficulty, 1, 5))
    return [with_articles(" ".join([wording.format(task=task), *chosen]))]


@repeats(
    "Calculate {tasks}. Explain every step to {about}.",
    "{about} wants to know: what is {tasks}? Show how you get the result.",
    "Compute {tasks}. Write one line for each step. This is for {about}.",
    "How do you work out {tasks}? Teach it to {about}.",
    "Find {tasks}. Check the result in a second way, so that {about} believes it.",
    "Solve {tasks} slowly, with a reason for each step, for {about}.",
)
def _calculation(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    a, b, c, d = (rng.randint(3, 98) for _ in range(4))
    unit = rng.choice(words.PLURALS)
    tasks = [
        f"({a} + {b}) x {c} - {d}",
        f"{a} percent of {b * 20}",
        f"{a}/{b} + {c}/{d}",
        f"the average of {a}, {b}, {c} and {d}",
        f"how many groups of {c % 9 + 2} fit into {a * 10} {unit}",
        f"{a} squared minus {b} times {c}",
        f"the area of a rectangle with sides {a} and {b}",
        f"the remainder of {a * b} divided by {c}",
    ]
    chosen = rng.sample(tasks, scaled(difficulty, 1, 4))
    about = f"{full_name(rng)}, a {rng.choice(words.JOBS)} from {rng.choice(words.CITIES)}"
    return [with_articles(wording.format(tasks=", then ".join(chosen), about=about))]


@repeats(
    "Write {language} code that {goals}.",
    "I need a {language} program that {goals}.",
    "Write a {language} class that {goals}.",
    "How would you write {language} code that {goals}?",
    "Please write and explain {language} code that {goals}.",
    "Create a small {language} module. It {goals}.",
)
def _code_from_spec(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    noun = rng.choice(words.CODE_NOUNS)
    many, verb = plural(noun), rng.choice(words.CODE_VERBS)
    a, b, c = rng.sample(words.CODE_FIELDS, 3)
    goals = [
        f"can {verb} {many} by {a}",
        f"finds the {noun} with the largest {b}",
        f"prints the average {c} of all {many}",
        f"removes each {noun} with {with_article(b)} above {rng.randint(5, 500)}",
        f"groups {many} by {c}",
        f"reads {many} from a file with {a} and {b}",
        f"counts how many {many} share the same {a}",
        f"returns the {many} in the order of their {c}",
        f"checks that no {noun} has a negative {b}",
    ]
    chosen = rng.sample(goals, scaled(difficulty, 1, 5))
    language = rng.choice(("Python", "Python", "Python", "JavaScript", "Java"))
    request = wording.format(goals=" and ".join(chosen), language=language)
    notes = [
        f"Use the name {rng.choice(words.HOST_WORDS)}_{noun} for the main function.",
        f"Show an example with {rng.randint(2, 6)} {many}.",
        f"It will run in the {rng.choice(words.SERVICES)} service.",
        "Add comments.",
        f"There are at most {rng.randint(10, 900)} {many}.",
    ]
    return [" ".join([request, *rng.sample(notes, scaled(difficulty, 1, 4))])]
