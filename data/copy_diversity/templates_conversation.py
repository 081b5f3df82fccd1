"""Copy-heavy CopyDiversity families that are conversations, or quote one."""

from __future__ import annotations

import random

from . import vocabulary as words
from .layout import copies, jittered, lay_out, scaled
from .passages import Scene, email, full_name, passage


def _topic(rng: random.Random) -> str:
    """Something a small model can write a few lines about."""
    adjective, animal, thing = (
        rng.choice(pool) for pool in (words.ADJECTIVES, words.ANIMALS, words.THINGS)
    )
    return rng.choice(
        (
            f"a {adjective} {animal} that finds a {thing}",
            f"a trip to {rng.choice(words.CITIES)} with {full_name(rng)}",
            f"{rng.choice(words.SUBJECTS)} for children in {rng.choice(words.CITIES)}",
            f"a {rng.choice(words.JOBS)} in {rng.choice(words.CITIES)} who loves "
            f"{rng.choice(words.HOBBIES)}",
            f"how {rng.choice(words.FIRST_NAMES)} learned to cook {rng.choice(words.FOODS)}",
            f"the new {thing} made by {rng.choice(words.COMPANIES)}",
        )
    )


_REVISIONS = (
    "Change the name of the main person to {name} and write it again.",
    "Write the same text again, but replace the first sentence with: {sentence}",
    "Now add this sentence at the end and show everything: {sentence}",
    "Please write your answer again in capital letters.",
    "Repeat your answer, but number the sentences.",
    "Write it again and mention {city} once. Keep the rest.",
    "Use the same text but put it in a letter to {name}.",
    "Write exactly the same again, with the title `{title}` on top.",
    "Say it again, but leave out the last sentence.",
    "Repeat the text above and put every name in quotation marks.",
)


def _revision(rng: random.Random) -> str:
    return rng.choice(_REVISIONS).format(
        name=full_name(rng),
        sentence=Scene.draw(rng).sentences(rng, 1)[0],
        city=rng.choice(words.CITIES),
        title=f"The {rng.choice(words.ADJECTIVES)} {rng.choice(words.THINGS)}".title(),
    )


@copies(
    "Write {n} sentences about {topic}.",
    "Tell me something about {topic} in {n} sentences.",
    "Please write a short text about {topic}.",
    "Write a paragraph on {topic}.",
    "Can you write an email about {topic}?",
    "I need a short text on {topic}, about {n} lines.",
)
def _rewrite_answer(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    facts = " ".join(Scene.draw(rng).sentences(rng, scaled(difficulty, 1, 9)))
    opening = wording.format(topic=_topic(rng), n=rng.randint(4, 7))
    turns = [f"{opening} {rng.choice(('Use this:', 'Some facts:', 'It should say:'))} {facts}"]
    return turns + [_revision(rng) for _ in range(scaled(difficulty, 1, 2))]


_CORRECTIONS = (
    "No, that is wrong: {old} must be {new}. Write the whole text again.",
    "Sorry, I meant {new}, not {old}. Please print it again.",
    "One more change: {old} should be {new}.",
    "Change {old} to {new} and show the full text.",
    "Undo that, but use {new} instead of {old}.",
)


@copies(
    "Replace {old} with {new} in this text.",
    "Please write this again with {new} instead of {old}.",
    "Change {old} to {new}. Show the full text.",
    "Here is my draft. {old} should be {new}. Print the new draft.",
    "Correct the draft: not {old}, but {new}.",
    "Edit this text so that it says {new} where it says {old}.",
)
def _multi_turn_correction(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    text = " ".join(scene.sentences(rng, max(jittered(rng, difficulty, 3, 15), 2)))
    pools = {
        scene.person: tuple(full_name(rng) for _ in range(4)),
        scene.other: tuple(full_name(rng) for _ in range(4)),
        scene.city: words.CITIES,
        scene.town: words.CITIES,
        scene.org: words.COMPANIES,
        scene.place: words.PLACES,
        scene.thing: words.THINGS,
    }
    olds = [name for name in pools if name in text] or [text.split()[0]]
    rng.shuffle(olds)
    changes = [
        {"old": old, "new": rng.choice(pools.get(old, words.FIRST_NAMES))}
        for old in (olds * 3)[: 1 + scaled(difficulty, 1, 2)]
    ]
    first = lay_out(rng, wording.format(**changes[0]), text)
    return [first, *(rng.choice(_CORRECTIONS).format(**change) for change in changes[1:])]


@copies(
    "Quote each message and write a short reply under it.",
    "Write the conversation again and add one more message at the end.",
    "Answer the last message as {second}. Put the earlier messages below your answer.",
    "Copy the whole conversation, but call the first speaker A and the second speaker B.",
    "Write a reply for {first} that quotes the last two messages.",
    "Repeat the thread from oldest to newest without any change.",
)
def _quoted_thread(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    first, second = full_name(rng), full_name(rng)
    scene = Scene.draw(rng)
    messages = scene.sentences(rng, max(jittered(rng, difficulty, 3, 13), 3))
    style = rng.randrange(3)
    lines = []
    for index, message in enumerate(messages):
        speaker = (first, second)[index % 2]
        if style == 0:
            lines.append(f"{speaker}: {message}")
        elif style == 1:
            lines.append(f"{'> ' * ((len(messages) - 1 - index) % 3 + 1)}{message}")
        else:
            lines.append(f"From: {email(rng, speaker)}\n{message}\n")
    instruction = wording.format(first=first, second=second)
    return [lay_out(rng, instruction, "\n".join(lines), kind="conversation")]


@copies(
    'What does the text say after "{clue}"? Quote the sentence.',
    'Find the sentence that begins with "{clue}" and copy it.',
    'Complete this sentence from the text: "{clue}"',
    'How does the sentence with "{clue}" go on? Answer with the full sentence.',
    'Look for "{clue}" and quote everything from there to the end.',
    'Which sentence contains "{clue}"? Write that sentence and the next one.',
)
def _question_quote(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text = passage(rng, max(jittered(rng, difficulty, 3, 18), 3))
    asked = rng.choice([part for part in text.replace("\n", " ").split(". ") if len(part) > 20])
    clue = " ".join(asked.split()[: rng.randint(3, 5)])
    turns = [lay_out(rng, wording.format(clue=clue), text)]
    if difficulty > 0.5:
        turns.append(
            rng.choice(
                (
                    "Which sentence comes right after that one? Copy it.",
                    "And which sentence comes before it? Quote it too.",
                    "Good. Now quote the first sentence of the text.",
                    "Please give the same answer again with the sentence after it.",
                )
            )
        )
    return turns
