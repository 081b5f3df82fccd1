"""Random English passages: sentences from many templates about one small, consistent scene."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from . import vocabulary as words

_TOPICS: dict[str, tuple[str, ...]] = {
    "town": (
        "{person} has lived near the {place} in {city} since {recent}.",
        "The council of {city} voted {small} to {small} to repair the {place}.",
        "Work on the {place} will begin on {weekday}, {day} {month}, for {small} weeks.",
        "The project costs about {amount} dollars, most of it paid by {org}.",
        '"We waited for years," said {person}, a {job} who works next door.',
        "A {adjective} {thing} was found under the floor of the {place} during the first survey.",
        "{other} collected {number} signatures from neighbors in a single afternoon.",
        "Buses in {city} will stop {small} streets away until the end of {month}.",
        "Not everyone is happy: {other} thinks the money should go to the schools.",
        "The mayor, {surname}, promised a {adjective} opening ceremony with free {food}.",
        "Parking on the east side costs {small} dollars an hour from {month} on.",
        "Children from the local school painted the fence {color} and {color}.",
    ),
    "expedition": (
        "{person} left {city} on {day} {month} with {small} companions and a {adjective} {thing}.",
        "The first camp stood {number} meters above the valley.",
        "At night the temperature fell to minus {small} degrees.",
        "{other} wrote every evening in a {color} notebook.",
        "On the {ordinal} day they saw a {animal} at the edge of the ice.",
        "Their supplies, paid for by {org}, included {number} tins of {food}.",
        "A storm kept the group in their tents for {small} days.",
        "{person} repaired the broken {thing} with wire and tape.",
        "From the ridge they could see {number} kilometers in every direction.",
        "The map was wrong in at least {small} places, {other} noted later.",
        "When they came back to {city}, nobody expected them before {month}.",
        "The samples are now kept in the {place} under number {number}.",
    ),
    "company": (
        "{org} opened its {ordinal} office in {city} in {month} {recent}.",
        "Sales rose by {small} percent to {amount} dollars in the last quarter.",
        "{person}, the company's chief {job}, presented the figures on {weekday}.",
        "The new {thing} will be sold in {small} colors, among them {color} and {color}.",
        "About {number} people work in the {city} branch, {small} of them part time.",
        "A customer survey found that {number} of {amount} buyers would buy the {thing} again.",
        "{other} joined as a {job} after {small} years at another firm.",
        "The delivery of the {adjective} {thing} was delayed until {day} {month}.",
        "The supplier in {town} raised its prices twice this year.",
        "Next year the firm plans to hire {small} more people, {person} said.",
        "The warehouse next to the {place} holds {amount} boxes.",
        "Complaints fell from {number} to {small} a week after the change.",
    ),
    "nature": (
        "The {animal} near {city} builds its nest between {month} and {month}.",
        "Researchers led by {person} counted {number} animals along the river.",
        "An adult {animal} weighs about {small} kilograms and eats {small} times a day.",
        "In winter the {animal} moves to the {adjective} hills south of {town}.",
        "{other} put up {small} cameras, and one of them recorded a {animal} at dawn.",
        "The water level has dropped by {small} centimeters since {recent}.",
        "Farmers report {adjective} nights with very little wind.",
        "The group found {number} eggs, of which {small} were damaged.",
        "A {color} band on the leg shows the year in which the bird was caught.",
        "The study was paid for by {org} and began in {recent}.",
        "No {animal} had been seen in this area for {small} years.",
        "Visitors are asked to stay {number} meters away from the {place}.",
    ),
    "sport": (
        "{city} won the final {small} to {small} in front of {amount} spectators.",
        "{person} scored in the {ordinal} minute after a long pass from {other}.",
        "The coach, {surname}, had changed {small} players since {weekday}.",
        "{other} was injured early and will miss the next {small} games.",
        "Tickets for the match in {town} sold out within {small} hours.",
        "The team trains every {weekday} in the {place}.",
        "It was the {ordinal} title for the club since {year}.",
        "A {adjective} goalkeeper saved the night for the visitors.",
        "The club, sponsored by {org}, pays {amount} dollars a year for the field.",
        "After the game the players shared {food} with the fans.",
        '"We were lucky today," {person} admitted.',
        "The next match is on {day} {month} against {town}.",
    ),
    "household": (
        "{person} bought a {color} {thing} for {number} dollars at the {place}.",
        "The recipe for {food} needs {small} cups of flour and {small} eggs.",
        "{other} called on {weekday} to ask about the {adjective} {thing}.",
        "The parcel from {org} arrived {small} days late.",
        "There are {small} keys: two for the door and one for the cellar.",
        "The plumber will come on {day} {month} between eight and ten.",
        "{person} keeps the old {thing} in a box under the stairs.",
        "The rent is {amount} dollars and includes water.",
        "Their neighbor, a retired {job} from {city}, feeds the cat.",
        "Please do not use the {adjective} {thing} before {weekday}.",
        "On Sundays the whole family eats {food} and talks about {hobby}.",
        "The {thing} on the top shelf belongs to {other}.",
    ),
    "history": (
        "The {place} of {city} was built in {year} by a {job} called {surname}.",
        "During the flood of {year} the water stood {small} meters high.",
        "A letter of {day} {month} {year} mentions a {adjective} {thing} made of silver.",
        "Only {small} of the original {number} windows survive.",
        "{surname} sold the house to {org} for {amount} dollars.",
        "Historians such as {person} doubt that the fire began in the kitchen.",
        "The archive in {town} keeps {number} drawings of the building.",
        "For {small} decades the hall served as a market for {food} and cloth.",
        "A {color} stone above the door shows a {animal} and a crown.",
        "{other} published the first catalogue in {year}.",
        "Trade with {town} ended after the war of {year}.",
        "Today the building houses a school and a small cafe.",
    ),
    "school": (
        "{person} teaches {subject} to a class of {small} pupils in {city}.",
        "The test on {weekday} has {small} questions about {subject}.",
        "{other} borrowed {small} books from the {place} and returned one.",
        "For the science fair, the class built a {adjective} model of a {thing}.",
        "The trip to {town} costs {number} dollars for each pupil.",
        "Lunch on {weekday} is {food} with salad.",
        "The school received {amount} dollars from {org} for new computers.",
        "{person} explained the experiment {small} times before it worked.",
        "The club for {hobby} meets in room {number}.",
        "Parents can register until {day} {month}.",
        "{other} won the {ordinal} prize with an essay about {subject}.",
        "The bell rings {small} minutes earlier from {month} on.",
    ),
}

# free sentences: subject + verb + object + circumstance, a great many more than the templates
_SUBJECTS = (
    *("{person}", "{person}", "{other}", "{other}", "{org}", "The {job}", "Nobody in {town}"),
    *("The {adjective} {job} from {town}", "A friend of {person}", "The owner of the {place}"),
    *("Every {job} in {city}", "The family of {other}", "{surname}, the {job},"),
)
_VERBS = """repaired sold painted lost borrowed hid praised described carried measured photographed
    forgot polished rented returned collected designed dropped examined found guarded improved
    invented labelled mentioned moved ordered packed planned preferred promised protected refused
    replaced requested saved searched shared showed sketched stored studied tested traded used
    wanted washed weighed wrapped admired bought cleaned counted delivered destroyed drew kept
    needed noticed opened sent"""
_OBJECTS = (
    *("the {thing}", "a {adjective} {thing}", "the {color} {thing}", "{number} {many}"),
    *("{small} {adjective} {many}", "a plate of {food}", "a book about {subject}"),
    *("the keys of the {place}", "a drawing of the {animal}", "the {ordinal} letter from {town}"),
    *("everything except the {thing}", "the {many} that belonged to {other}", "a {job}'s {thing}"),
)
_CIRCUMSTANCES = (
    *("on {weekday}", "near the {place}", "in {month}", "for {small} dollars", "without a word"),
    *("because the {animal} was {adjective}", "after the meeting in {town}", "before lunch"),
    *("while {other} was in {city}", "although it was {adjective} and {adjective}", "twice"),
    *("with the help of {small} neighbors", "instead of the {many}", "for the sake of {hobby}"),
    *("when the {place} closed", "until the {ordinal} of {month}", "during the {hobby} class"),
    *("to surprise the {job}", "as {person} had asked", "since {recent}", "at the {place}"),
)
_LINKS = (
    *("", "", "", "", "", "", "However, ", "In the end, ", "At first, ", "By then, ", "Luckily, "),
    *("According to {other}, ", "Some weeks later, ", "That year, ", "For this reason, "),
    *("Near the {place}, ", "On {weekday}, ", "To be fair, ", "Even so, ", "As everyone knows, "),
)

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "ninth", "tenth")
_SLOT = re.compile(r"\{(\w+)\}")
_VOWEL_AFTER_A = re.compile(r"\b([Aa]) (?=[aeiou])")


def full_name(rng: random.Random) -> str:
    """A first name and a surname."""
    return f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.SURNAMES)}"


def date(rng: random.Random) -> str:
    """A date such as `17 March 2004`."""
    return f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)} {rng.randint(1950, 2024)}"


def email(rng: random.Random, name: str) -> str:
    """An address for a person at one of the companies."""
    company = rng.choice(words.COMPANIES).split()[0].lower()
    return f"{name.lower().replace(' ', '.')}@{company}.{rng.choice(('com', 'org', 'net'))}"


def with_articles(prose: str) -> str:
    """The prose with `an` for `a` before a vowel (pools are filled in without looking)."""
    return _VOWEL_AFTER_A.sub(r"\1n ", prose)


@dataclass(frozen=True)
class Scene:
    """The people and places a passage keeps coming back to."""

    topic: str
    person: str
    other: str
    city: str
    town: str
    org: str
    place: str
    thing: str
    animal: str

    @classmethod
    def draw(cls, rng: random.Random) -> Scene:
        """A random scene."""
        city, town = rng.sample(words.CITIES, 2)
        return cls(
            topic=rng.choice(list(_TOPICS)),
            person=full_name(rng),
            other=full_name(rng),
            city=city,
            town=town,
            org=rng.choice(words.COMPANIES),
            place=rng.choice(words.PLACES),
            thing=rng.choice(words.THINGS),
            animal=rng.choice(words.ANIMALS),
        )

    def sentences(self, rng: random.Random, n: int) -> list[str]:
        """`n` sentences: about half from the topic's templates, no template twice, half free."""
        share = rng.uniform(0.2, 0.8)
        own = rng.sample(_TOPICS[self.topic], len(_TOPICS[self.topic]))
        templates = [
            own.pop() if own and rng.random() < share else _free_sentence(rng) for _ in range(n)
        ]
        return [self.fill(rng, template) for template in templates]

    def fill(self, rng: random.Random, template: str) -> str:
        """Fill the `{slots}`: the scene's own people and places, all else drawn anew."""
        return with_articles(_SLOT.sub(lambda slot: self._word(rng, slot[1]), template))

    def _word(self, rng: random.Random, slot: str) -> str:
        own = getattr(self, slot, None)
        if isinstance(own, str):
            # people recur by first name too, as in real prose
            return own.split()[0] if slot in ("person", "other") and rng.random() < 0.3 else own
        numbers = {
            "small": (2, 19),
            "number": (20, 480),
            "amount": (1100, 98000),
            "year": (1820, 2024),
            "recent": (1985, 2024),
            "day": (1, 28),
        }
        if slot in numbers:
            return str(rng.randint(*numbers[slot]))
        pools = {
            "month": words.MONTHS,
            "weekday": words.WEEKDAYS,
            "adjective": words.ADJECTIVES,
            "color": words.COLORS,
            "food": words.FOODS,
            "job": words.JOBS,
            "surname": words.SURNAMES,
            "subject": words.SUBJECTS,
            "hobby": words.HOBBIES,
            "many": words.PLURALS,
            "ordinal": _ORDINALS,
        }
        return rng.choice(pools[slot])


def _free_sentence(rng: random.Random) -> str:
    link, subject = rng.choice(_LINKS), rng.choice(_SUBJECTS)
    if link and not subject.startswith("{"):
        subject = subject[0].lower() + subject[1:]
    clause = f"{subject} {rng.choice(_VERBS.split())} {rng.choice(_OBJECTS)}"
    circumstances = rng.sample(_CIRCUMSTANCES, rng.randint(1, 2))
    return f"{link}{clause} {' '.join(circumstances)}."


def passage(rng: random.Random, n_sentences: int, *, per_paragraph: int = 5) -> str:
    """A passage of `n_sentences` sentences, broken into paragraphs."""
    sentences = Scene.draw(rng).sentences(rng, n_sentences)
    starts = range(0, n_sentences, per_paragraph)
    return "\n\n".join(" ".join(sentences[start : start + per_paragraph]) for start in starts)
