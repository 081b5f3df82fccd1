"""Copy-heavy CopyDiversity families whose payload is prose."""

from __future__ import annotations

import random
import re

from . import vocabulary as words
from .layout import copies, jittered, lay_out, scaled
from .passages import Scene, full_name, passage


@copies(
    "Repeat {part} word for word.",
    "Copy {part} exactly.",
    "Write out {part} again without any change.",
    "Please quote {part} in full.",
    "Say {part} back to me exactly as it is written.",
    "Print {part}. Do not add or remove a word.",
    "First repeat {part} exactly. Then write one sentence about it.",
)
def _quote_verbatim(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    n_sentences = max(jittered(rng, difficulty, 3, 17), 2)
    sentences = Scene.draw(rng).sentences(rng, n_sentences)
    part = "the text"
    if rng.random() < difficulty:
        start = rng.randrange(n_sentences - 1)
        first = " ".join(sentences[start].split()[:4])
        part = f'the text from "{first}" to the end'
    if rng.random() < 0.3:
        sentences = [f"{index}. {sentence}" for index, sentence in enumerate(sentences, 1)]
        return [lay_out(rng, wording.format(part=part), "\n".join(sentences))]
    return [lay_out(rng, wording.format(part=part), " ".join(sentences))]


@copies(
    "{edit} Write the whole text again.",
    "Edit the text: {edit} Keep everything else.",
    "Please make this change and print the full text. {edit}",
    "I want the same text with a small change. {edit}",
    "{edit} All other words must stay the same.",
    "Return the corrected text. The correction: {edit}",
)
def _passage_edit(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text = passage(rng, max(jittered(rng, difficulty, 3, 18), 2))
    capitalised = set(re.findall(r"(?<=[a-z,] )[A-Z]\w{3,}", text))
    names = sorted(capitalised - {*words.MONTHS, *words.WEEKDAYS})
    numbers = sorted(set(re.findall(r"\b\d+\b", text)))
    edits = [
        f"Replace {old} with {rng.choice(words.FIRST_NAMES)}."
        for old in rng.sample(names, min(scaled(difficulty, 1, 3), len(names)))
    ]
    if numbers and rng.random() < 0.4:
        edits[:1] = [f"Change {rng.choice(numbers)} to {rng.randint(500, 999)}."]
    if not edits or rng.random() < 0.3:
        edits[-1:] = [f"Add this sentence at the end: {Scene.draw(rng).sentences(rng, 1)[0]}"]
    return [lay_out(rng, wording.format(edit=" ".join(edits)), text)]


def _misspell(rng: random.Random, word: str) -> str:
    place = rng.randrange(1, len(word) - 2)
    kind = rng.randrange(3)
    if kind == 0:
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == 1:
        return word[:place] + word[place + 1 :]
    return word[: place + 1] + word[place:]


@copies(
    "Correct the spelling mistakes. Keep everything else the same.",
    "Fix the typos in this text.",
    "Proofread the text and write it again without errors.",
    "Please correct the spelling and print the whole text.",
    "There are some typing mistakes here. Write the corrected text.",
    "Write the text again with correct spelling. Do not change the style.",
)
def _proofread(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    tokens = passage(rng, max(jittered(rng, difficulty, 3, 17), 2)).split(" ")
    long_words = [i for i, token in enumerate(tokens) if token.isalpha() and len(token) > 4]
    for index in rng.sample(long_words, min(scaled(difficulty, 2, 8), len(long_words))):
        tokens[index] = _misspell(rng, tokens[index])
    return [lay_out(rng, wording, " ".join(tokens))]


@copies(
    "Translate the text into {language}. Keep all names.",
    "Write this in {language}. Do not translate names of people and companies.",
    "Copy each sentence and put its {language} translation under it.",
    "Please translate to {language} and keep names and numbers as they are.",
    "Give the {language} version of this text, names unchanged.",
    "For every sentence write first the English original, then the {language} translation.",
)
def _translation_names(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text = passage(rng, max(jittered(rng, difficulty, 2, 11), 2))
    return [lay_out(rng, wording.format(language=rng.choice(words.LANGUAGES)), text)]


@copies(
    "Summarize the article in three sentences.",
    "What are the main points of this article?",
    "Pick the two most important sentences and copy them.",
    "Give a short summary that uses the words of the article.",
    "Write the key facts of the text as a list.",
    "Make this shorter. Use sentences from the text.",
    "Sum up this report for a busy reader.",
)
def _summarise_article(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text = passage(rng, max(jittered(rng, difficulty, 6, 30), 4), per_paragraph=4)
    return [lay_out(rng, wording, text, kind="article")]


@copies(
    "Extract {what}.",
    "Find {what} and write them down exactly.",
    "Copy {what} from the text.",
    "Please list {what}. Use the exact words.",
    "From the text below I need {what}.",
    "Read the text and quote {what}.",
)
def _extraction(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    scene = Scene.draw(rng)
    sentences = scene.sentences(rng, max(jittered(rng, difficulty, 4, 20), 3))
    text = " ".join(sentences)
    present = [name for name in (scene.city, scene.org, scene.thing, scene.place) if name in text]
    what = rng.choice(
        [
            *(f"every sentence that mentions {name}" for name in present),
            "every sentence with a number",
            "all names of people and the sentence they appear in",
            "the longest sentence and the shortest sentence",
            "the last two sentences",
        ]
    )
    return [lay_out(rng, wording.format(what=what), text)]


def _word_problem(rng: random.Random, n_facts: int) -> str:
    buyer, seller = full_name(rng), rng.choice(words.FIRST_NAMES)
    thing, other = rng.sample(words.PLURALS, 2)
    place, city = rng.choice(words.PLACES), rng.choice(words.CITIES)
    first = buyer.split()[0]
    facts = [
        f"{seller} sells {thing} for {rng.randint(2, 40)} dollars each.",
        f"Every {rng.choice(words.WEEKDAYS)} the price of {other} is {rng.randint(2, 9)} dollars.",
        f"{first} gives {rng.randint(2, 30)} {thing} to a friend in {city}.",
        f"A box holds {rng.randint(3, 24)} {other}.",
        f"{first} walks {rng.randint(2, 30)} minutes to the {place} and back.",
        f"Half of the {other} are {rng.choice(words.COLORS)}.",
        f"Later {seller} finds {rng.randint(2, 50)} more {thing} in the cellar.",
    ]
    chosen = rng.sample(facts, min(n_facts, len(facts)))
    start = f"{buyer} has {rng.randint(20, 300)} {thing} and {rng.randint(20, 300)} {other}."
    question = rng.choice(
        (
            f"How many {thing} does {first} have in the end?",
            f"How many {other} and {thing} are there together?",
            f"How much money does {first} need for {rng.randint(3, 40)} more {thing}?",
        )
    )
    return " ".join([start, *chosen, question])


@copies(
    "Restate the problem exactly, then solve it step by step.",
    "First copy the question. Then give the solution.",
    "Write down the given facts from the problem, then the answer.",
    "Repeat the problem in full before you solve it.",
    "Solve this problem. Quote each sentence before you use it.",
    "Start with `Problem:` and the full text, then `Solution:` and your steps.",
)
def _maths_restate(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    story = Scene.draw(rng).sentences(rng, scaled(difficulty, 0, 6))
    problem = " ".join([*story, _word_problem(rng, scaled(difficulty, 1, 7))])
    return [lay_out(rng, wording, problem, kind="problem")]
