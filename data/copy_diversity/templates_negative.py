"""Accidental-repetition CopyDiversity families: free prose in which words come back.

Names, terms and sentence openings recur, so the context offers n-gram matches, but the answer
goes on differently. Most of these prompts hold next to nothing to quote: a small model copies
whatever statements it is given, also when told not to. Algebra, numbers and code are in
`templates_pattern`.
"""

from __future__ import annotations

import random

from . import vocabulary as words
from .layout import repeats, scaled
from .passages import Scene, with_articles

_PREMISES = (
    "{person} owns a {color} {thing} and never lends it to anyone.",
    "{other} is afraid of every {animal}.",
    "They meet at the {place} in {city} on a {adjective} {weekday}.",
    "{person} has a secret plan with {small} {many}.",
    "{other} believes that the {thing} is {adjective} and perhaps magic.",
    "{person} learned {hobby} in {town} and wants to show it to {other}.",
    "A {adjective} {animal} follows them everywhere.",
    "Somebody from {org} wants to buy the {thing}.",
    "It is {month}, and all the {many} in {city} have disappeared.",
    "{other} can only talk about {subject}.",
    "In the end, {person} cooks {food} for everybody.",
    "{person} and {other} have not spoken for {small} years.",
    "The {job} of {town} gives them a {color} key.",
    "{other} has promised to be {adjective} and {adjective} today.",
    "The weather changes when {person} touches the {thing}.",
)


def _premises(rng: random.Random, scene: Scene, n: int) -> str:
    chosen = rng.sample(_PREMISES, min(n, len(_PREMISES)))
    return " ".join(scene.fill(rng, premise) for premise in chosen)


def _pair(rng: random.Random, scene: Scene) -> str:
    first, second = rng.sample(words.JOBS, 2)
    one, two = scene.person.split()[0], scene.other.split()[0]
    return scene.fill(rng, f"a {first} called {one} and a {second} from {{city}} called {two}")


@repeats(
    "Write a {genre} about {pair}.",
    "Invent a {genre} of {n} sentences with {pair}.",
    "Make up a {genre}. The main people are {pair}.",
    "Please tell me a {genre} in which {pair} meet.",
    "I would like to read a {genre} about {pair}. Use their names often.",
    "Write the beginning of a {genre} about {pair}.",
)
def _recurring_story(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    request = wording.format(
        genre=rng.choice(words.GENRES), pair=_pair(rng, scene), n=rng.randint(6, 14)
    )
    premises = _premises(rng, scene, scaled(difficulty, 0, 4))
    return [
        with_articles(
            (f"{premises} {request}" if rng.random() < 0.5 else f"{request} {premises}").strip()
        )
    ]


_OPENINGS = (
    "My {thing} is",
    "Every {animal} in {city}",
    "{person} never",
    "If I were a {job},",
    "The {adjective} {thing} of {person}",
    "In {month}, the {place}",
    "I like {hobby} because",
    "A good {job} always",
    "When {person} came to {city},",
    "The best thing about {subject} is",
    "Last {weekday}, {other} and {person}",
)


@repeats(
    "Write {n} different sentences that begin with {opening}.",
    "Each line must start with {opening}, but end in a new way. Write {n} lines.",
    "Give me {n} endings for a sentence that starts with {opening}.",
    "Write a poem of {n} lines. Every line begins with {opening}.",
    "Begin {n} sentences with {opening}. No two may say the same.",
    "Invent {n} funny sentences starting with {opening}.",
)
def _near_duplicates(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    openings = rng.sample(_OPENINGS, scaled(difficulty, 1, 2))
    quoted = " or ".join(f'"{scene.fill(rng, opening)}"' for opening in openings)
    return [with_articles(wording.format(opening=quoted, n=rng.randint(5, 12)))]


_KINDS = (
    (words.CITIES, "cities"),
    (words.ANIMALS, "animals"),
    (words.JOBS, "jobs"),
    (words.FOODS, "dishes"),
    (words.HOBBIES, "hobbies"),
    (words.SUBJECTS, "topics"),
    (words.THINGS, "objects"),
)


@repeats(
    "Write one sentence with a fact about each of these {kind}: {items}.",
    "What are these {kind} known for: {items}? One line each.",
    "Describe the following {kind} in full sentences: {items}.",
    "Tell me something new about {items}. Begin each sentence with the name.",
    "Name one good and one bad thing about each of these {kind}: {items}.",
    "Which of these {kind} is the most useful: {items}? Discuss each one.",
)
def _similar_facts(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    pool, kind = rng.choice(_KINDS)
    items = rng.sample(pool, scaled(difficulty, 3, 14))
    reader = f"Write for a {rng.choice(words.JOBS)} from {rng.choice(words.CITIES)}."
    request = wording.format(kind=kind, items=", ".join(items[:-1]) + " and " + items[-1])
    return [with_articles(f"{request} {reader}" if rng.random() < difficulty else request)]


@repeats(
    "Write two short emails from {person} to {other}: one about {first}, one about {second}.",
    "{person} writes to {other} about {first}. Write the letter and the answer of {other}.",
    "Write an email to {other} about {first}, then a very different one about {second}.",
    "Draft three short messages from {person}: about {first}, about {second}, about {third}.",
    "Help {person} to complain about {first} and to say thanks for {second} in one letter.",
    "Write a polite letter from {person} about {first}. Then write an angry one.",
)
def _two_letters(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    reasons = (
        "the lost {thing}",
        "a visit to {city} in {month}",
        "{small} broken {many}",
        "the {adjective} food at the {place}",
        "a course in {hobby}",
        "the price of the {color} {thing}",
        "a job as a {job} at {org}",
    )
    first, second, third = (scene.fill(rng, text) for text in rng.sample(reasons, 3))
    person, other = scene.person.split()[0], scene.other.split()[0]
    request = wording.format(person=person, other=other, first=first, second=second, third=third)
    return [with_articles(f"{request} {_premises(rng, scene, scaled(difficulty, 0, 2))}".strip())]


@repeats(
    "Explain {subject} in simple words.",
    "How does {subject} work? Answer in {n} steps.",
    "What is the difference between {subject} and {other}?",
    "Write {n} questions about {subject} with short answers.",
    "Why is {subject} important? Give {n} reasons.",
    "Describe {subject} twice: first simply, then in detail.",
    "What do {subject} and {other} have in common?",
)
def _explain_concept(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    subject, other = rng.sample(words.SUBJECTS, 2)
    wishes = [
        f"Use a {rng.choice(words.THINGS)} as an example.",
        f"I am a {rng.choice(words.JOBS)} and know a lot about {rng.choice(words.HOBBIES)}.",
        f"My child asked me about it in the {rng.choice(words.PLACES)} last "
        f"{rng.choice(words.WEEKDAYS)}.",
        f"Say also how it matters for a {rng.choice(words.ANIMALS)}.",
        f"Compare it with {rng.choice(words.SUBJECTS)} at the end.",
        f"Do not use more than {rng.randint(90, 200)} words.",
        f"I live in {rng.choice(words.CITIES)} and will give a talk in {rng.choice(words.MONTHS)}.",
        f"The talk is for {rng.randint(5, 90)} people who like {rng.choice(words.FOODS)}.",
    ]
    request = wording.format(subject=subject, other=other, n=rng.randint(4, 9))
    chosen = " ".join(rng.sample(wishes, scaled(difficulty, 1, 8)))
    return [with_articles(f"{chosen} {request}" if rng.random() < 0.4 else f"{request} {chosen}")]


@repeats(
    "Compare {first} and {second}. What would you say to {pair}?",
    "Which is better, {first} or {second}? Give reasons for both.",
    "Why could {pair} argue about {first} and {second}? Who is right?",
    "What are the strong and weak points of {first} and of {second}?",
    "List four differences between {first} and {second} that matter to {pair}.",
    "Argue for {first}. Then argue for {second}. Then decide.",
)
def _compare_two(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    pool, _ = rng.choice(_KINDS)
    first, second = rng.sample(pool, 2)
    scene = Scene.draw(rng)
    reader = f" Answer for a {rng.choice(words.JOBS)} who likes {rng.choice(words.HOBBIES)}."
    request = wording.format(first=first, second=second, pair=_pair(rng, scene))
    return [with_articles(request + reader * (rng.random() < 0.3 + difficulty))]


@repeats(
    "Write a dialogue of {n} lines between {pair}.",
    "What would {pair} say about a {thing}? Write it with the name before each line.",
    "Write a scene for the theater with {pair}. Then {first} comes in.",
    "Write an interview with {n} questions. It is between {pair}.",
    "Write a phone call between {pair}. They do not agree about the {thing}.",
    "Make up a funny conversation between {pair}.",
)
def _scene_dialogue(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    pair = _pair(rng, scene)
    first = rng.choice(words.FIRST_NAMES)
    request = wording.format(pair=pair, first=first, n=rng.randint(8, 16), thing=scene.thing)
    return [with_articles(f"{request} {_premises(rng, scene, scaled(difficulty, 0, 3))}".strip())]


@repeats(
    "How can {person} {task}? Give {n} steps.",
    "Explain step by step how to {task}. {person} has never done it.",
    "Write {n} tips for {person}, who wants to {task}.",
    "What does {person} need in order to {task}? Make a list with reasons.",
    "Give {person} clear instructions: how to {task}.",
    "{person} wants to {task} and has {n} days. Write a plan, day by day.",
)
def _how_to(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    thing, color = rng.choice(words.THINGS), rng.choice(words.COLORS)
    task = rng.choice(
        (
            f"repair a {thing}",
            f"cook {rng.choice(words.FOODS)}",
            f"start with {rng.choice(words.HOBBIES)}",
            f"sell an old {thing}",
            f"find a job as a {rng.choice(words.JOBS)}",
            f"paint a {thing} {color}",
            f"travel from {rng.choice(words.CITIES)} to {rng.choice(words.CITIES)}",
            f"take care of a {rng.choice(words.ANIMALS)}",
        )
    )
    limits = (
        f"Everything must be done by {rng.choice(words.WEEKDAYS)}.",
        f"The budget is {rng.randint(10, 900)} dollars.",
        f"Use a {rng.choice(words.THINGS)} if possible.",
        f"Mention the {rng.choice(words.PLACES)} at least once.",
    )
    person = rng.choice(words.FIRST_NAMES)
    request = wording.format(task=task, n=rng.randint(5, 10), person=person)
    return [with_articles(" ".join([request, *rng.sample(limits, scaled(difficulty, 0, 3))]))]
