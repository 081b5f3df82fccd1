"""Accidental-repetition CopyDiversity families with a long context that the answer does not use.

Without them, a long prompt or a block of code would by itself mean copying.
"""

from __future__ import annotations

import random

from . import vocabulary as words
from .layout import jittered, repeats
from .passages import full_name, passage, with_articles
from .programs import program
from .records import NOTATIONS, config, log_lines, table

_NEW_REQUESTS = (
    "Write {n} sentences about {subject} and {hobby}.",
    "Plan a day in {city} for {name}, who likes {hobby}.",
    "Give {name} {n} tips for {hobby}.",
    "Invent {n} riddles about {subject} for {name}.",
    "What would {name} need to know about {subject} in {city}?",
    "Write a poem about {hobby} in {city}.",
    "Explain to {name} what {subject} has to do with {hobby}.",
    "Write a recipe for {food} that {name} can cook in {city}.",
    "Tell a joke about {hobby} and explain it to {name}.",
    "Describe a {animal} to {name}, who has never seen one.",
)


def _new_request(rng: random.Random) -> str:
    request = rng.choice(_NEW_REQUESTS).format(
        subject=rng.choice(words.SUBJECTS),
        hobby=rng.choice(words.HOBBIES),
        city=rng.choice(words.CITIES),
        food=rng.choice(words.FOODS),
        animal=rng.choice(words.ANIMALS),
        name=full_name(rng),
        n=rng.randint(3, 8),
    )
    return with_articles(request)


def _distraction(rng: random.Random, difficulty: float) -> str:
    """A passage, program, table, log or configuration that has nothing to do with the request."""
    kind = rng.random()
    if kind < 0.4:
        return passage(rng, jittered(rng, difficulty, 2, 15))
    if kind < 0.6:
        return program(rng, jittered(rng, difficulty, 1, 4))
    if kind < 0.75:
        rows = table(rng, jittered(rng, difficulty, 3, 9), 3)
        return rng.choice(list(NOTATIONS.values()))(rows)
    if kind < 0.9:
        return "\n".join(log_lines(rng, jittered(rng, difficulty, 3, 10)))
    return config(rng, jittered(rng, difficulty, 4, 20))[0]


@repeats(
    "Thank you. Now something else. {request}",
    "Fine. New topic. {request}",
    "Forget the text. {request}",
    "Ok. {request}",
    "Let us talk about something different. {request}",
    "Good. Here is another task. {request}",
)
def _change_of_subject(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text = passage(rng, jittered(rng, difficulty, 2, 15))
    first = rng.choice(
        (
            "What do you think about this text?",
            "Is this good or bad news, and for whom?",
            "How could this story go on?",
            "In which season could this happen, and why?",
            "What question would you ask the writer?",
            "How does this text make you feel?",
        )
    )
    return [f"{text}\n\n{first}", wording.format(request=_new_request(rng))]


@repeats(
    "{request}",
    "Question: {request}",
    "Please help me with this. {request}",
    "My question is about something else. {request}",
    "Task: {request}",
    "And now a different task. {request}",
)
def _unrelated_request(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    return [f"{_distraction(rng, difficulty)}\n\n{wording.format(request=_new_request(rng))}"]
