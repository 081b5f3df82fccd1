"""Copy-heavy CopyDiversity families whose payload is structured: tables, forms, logs, settings."""

from __future__ import annotations

import random

from . import vocabulary as words
from .layout import copies, jittered, lay_out, scaled
from .passages import Scene, date, email, full_name
from .records import NOTATIONS, config, log_lines, table


@copies(
    "Convert this {before} to a {after}.",
    "Rewrite the data as {after}. Keep all values.",
    "Turn the following {before} into a {after}.",
    "Please give me the same data as a {after}.",
    "I have a {before} and I need a {after} with the same content.",
    "Change the format from {before} to {after}. Do not change any value.",
    "Write every entry again, now as {after}.",
)
def _table_convert(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    n_rows = max(jittered(rng, difficulty, 3, 10), 2)
    rows = table(rng, n_rows, scaled(difficulty, 2, 4))
    before, after = rng.sample(list(NOTATIONS), 2)
    if difficulty > 0.5 and rng.random() < 0.5:
        after += f" without the {rng.choice(list(rows[0]))}"
    instruction = wording.format(before=before, after=after)
    return [lay_out(rng, instruction, NOTATIONS[before](rows), kind="data")]


@copies(
    "Fill in this form with the facts from the notes.",
    "Use the notes to complete the form.",
    "Complete every field of the form. Copy the values exactly.",
    "Please fill out the form below using only the text.",
    "Read the notes and write the filled form.",
    "Write the form again with the right value in each field.",
)
def _form_filling(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    person = full_name(rng)
    facts = {
        "Full name": (person, f"The applicant is called {person}."),
        "Born": (birth := date(rng), f"The date of birth is {birth}."),
        "Email": (address := email(rng, person), f"Mails go to {address}."),
        "City": (city := rng.choice(words.CITIES), f"Home is a small flat in {city}."),
        "Job": (job := rng.choice(words.JOBS), f"By training this is a {job}."),
        "Company": (org := rng.choice(words.COMPANIES), f"The last employer was {org}."),
        "Phone": (phone := f"555-{rng.randint(1000, 9999)}", f"Call {phone} after six."),
        "Hobby": (hobby := rng.choice(words.HOBBIES), f"In the free time there is {hobby}."),
        "Order": (
            order := f"{rng.randint(2, 40)} {rng.choice(words.PLURALS)}",
            f"The order is for {order}.",
        ),
        "Reference": (
            code := f"{rng.choice(words.HOST_WORDS).upper()}-{rng.randint(100, 9999)}",
            f"The reference on the letter is {code}.",
        ),
    }
    fields = rng.sample(list(facts), scaled(difficulty, 4, 9))
    sentences = [facts[field][1] for field in fields]
    sentences += Scene.draw(rng).sentences(rng, scaled(difficulty, 0, 11))
    rng.shuffle(sentences)
    blank = rng.choice((": ____", ":", ": [fill in]", " = ?"))
    form = "\n".join(f"{field}{blank}" for field in fields)
    return [lay_out(rng, f"{wording}\n\n{form}", " ".join(sentences), kind="notes")]


@copies(
    "List all {level} lines of this log.",
    "Copy every line with {level} exactly as it is.",
    "Which lines are {level} lines? Write them out, then say what went wrong.",
    "Show me only the {level} entries from the log.",
    "Quote each {level} line and explain it in one short sentence.",
    "Go through the log and repeat the {level} lines in order.",
    "Remove every line that is not {level} and print the rest.",
)
def _log_triage(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    lines = log_lines(rng, max(jittered(rng, difficulty, 4, 12), 3))
    levels = [level for level in ("ERROR", "WARN") if any(level in line for line in lines)]
    instruction = wording.format(level=rng.choice(levels))
    return [lay_out(rng, instruction, "\n".join(lines), kind="log")]


@copies(
    "In this configuration, {edit}. Print the whole file.",
    "Please {edit} and keep all other settings.",
    "Update the config file: {edit}. Show the complete file.",
    "I want to {edit}. Write the new configuration.",
    "Edit the settings below: {edit}. Nothing else may change.",
    "Return the same file, but {edit}.",
)
def _config_edit(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    text, settings = config(rng, jittered(rng, difficulty, 5, 24))
    chosen = rng.sample(list(settings), min(scaled(difficulty, 1, 3), len(settings)))
    edits = [f"set {name} to {rng.randint(5001, 9999)}" for name in chosen]
    if rng.random() < 0.3:
        edits[-1] = f"remove the setting {chosen[-1]}"
    return [lay_out(rng, wording.format(edit=" and ".join(edits)), text, kind="config")]


_LIST_TASKS = (
    "Sort the list from A to Z.",
    "Number the lines.",
    "Write the list in reverse order.",
    "Put a dash in front of every line.",
    "Write the list again and add `{extra}` at the end.",
    "Write the list again without `{drop}`.",
    "Write the list on one line with commas.",
    "Move `{drop}` to the top of the list.",
)


@copies(
    "{task}",
    "{task} Keep every entry as it is.",
    "Here is a list. {task}",
    "Please help me with this list. {task}",
    "{task} Write the whole list, nothing else.",
    "Work on the list. {task} Do not shorten the entries.",
)
def _list_edit(rng: random.Random, difficulty: float, wording: str) -> list[str]:
    n_items = max(jittered(rng, difficulty, 6, 32), 4)
    kind = rng.randrange(4)
    items = [
        (
            f"{rng.randint(2, 60)} {rng.choice(words.ADJECTIVES)} {rng.choice(words.PLURALS)}",
            f"{full_name(rng)} ({rng.choice(words.CITIES)})",
            f"{rng.choice(words.FOODS)} with {rng.choice(words.FOODS)}",
            f"{rng.choice(words.WEEKDAYS)} {rng.randint(1, 12)}:30, {rng.choice(words.PLACES)}",
        )[kind]
        for _ in range(n_items)
    ]
    task = rng.choice(_LIST_TASKS).format(extra=full_name(rng), drop=rng.choice(items))
    return [lay_out(rng, wording.format(task=task), "\n".join(items), kind="list")]
