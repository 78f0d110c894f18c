"""Sentences made up from templates: facts to ask for, and names, places and dates to find."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SYLLABLES = ("bel", "cor", "dan", "el", "fir", "gra", "hol", "jun", "kar", "lor", "mar", "nev",
             "or", "pel", "quin", "ros", "sil", "tam", "ur", "vel", "wes", "yar",
             "zel")  # fmt: skip
FIRST = ("Maria", "John", "Aisha", "Kenji", "Sarah", "Pedro", "Ingrid", "Chen", "Olga", "David",
         "Fatima", "Lucas", "Priya", "Emma", "Omar", "Anna")  # fmt: skip
LAST = ("Smith", "Lindqvist", "O'Neill", "Tanaka", "García", "Müller", "Okafor", "Novak",
        "Johnson", "Rossi", "Kim", "Van Dijk", "Haddad", "Kowalski", "Brown", "Silva")  # fmt: skip
PLACES = ("London", "New York", "Göteborg", "Saint-Malo", "Nairobi", "São Paulo", "Kyoto",
          "Zürich", "Cape Town", "Oslo", "Lima", "Marrakesh", "Toronto", "Hanoi",
          "Los Angeles", "Tbilisi")  # fmt: skip
MONTHS = ("January", "March", "April", "June", "July", "August", "October", "December")

# what a question asks, and what a sentence tells, of {s}
FACTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "capital": (
        ("What is the capital of {s}?", "capital city of {s}"),
        ("The capital of {s} is {v}.", "{v} is where the government of {s} sits."),
    ),
    "river": (
        ("Which river flows through {s}?", "rivers in {s}"),
        ("The river {v} runs through {s} to the sea.", "In {s} the {v} floods each spring."),
    ),
    "food": (
        ("What do people eat in {s}?", "traditional dish of {s}"),
        ("{s} is known for its soup of {v}.", "Every kitchen in {s} bakes {v} bread."),
    ),
    "founder": (
        ("Who founded {s}?", "founder of {s}"),
        ("{s} was founded by {v} after the war.", "{v} laid the first stone of {s}."),
    ),
    "language": (
        ("Which language is spoken in {s}?", "language of {s}"),
        ("Most people in {s} speak {v}.", "{v} is taught in the schools of {s}."),
    ),
    "weather": (
        ("How cold is the winter in {s}?", "climate of {s}"),
        ("Winters in {s} are mild, with wind from {v}.", "Snow covers {s} and {v} until May."),
    ),
}
# the first are to learn from, the last few are held out
SENTENCES = (
    "{PER} was born in {LOC} on {DATE}.",
    "In {DATE} {PER} moved to {LOC}.",
    "{PER} and {PER} met in {LOC}.",
    "My name is {PER} and I live in {LOC}.",
    "The report that {PER} wrote about {LOC} was published on {DATE}.",
    "Since {DATE} nobody has seen {PER}.",
    "The train from {LOC} to {LOC} was late again.",
    "On {DATE} the museum of {LOC} bought a painting by {PER}.",
    "Nothing else happened that day, and the shop stayed closed.",
    "Dear {PER}, the meeting is on {DATE}.",
    "{PER} studied law in {LOC} until {DATE}.",
    "We asked {PER}, who knows {LOC} well.",
    "Last week {PER} flew from {LOC} to {LOC}.",
    "The bridge near {LOC} was opened by {PER} on {DATE}.",
    "It rained on {DATE}, but {PER} walked home.",
)
NUM_HELD_OUT = 3
KINDS = ("PER", "LOC", "DATE")


class Pair(NamedTuple):
    question: str
    sentence: str
    answers: bool


class Marked(NamedTuple):
    text: str
    spans: list[tuple[str, int, int]]  # kind, first character, one past the last


class Maker:
    """Made text. What is held out has names that the rest does not have."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self._random, self._held_out = random.Random(seed), held_out

    def _choose(self, values: Sequence[str]) -> str:
        """Each fourth value is held out."""
        return self._random.choice(
            [value for i, value in enumerate(values) if (i % 4 == 3) == self._held_out]
        )

    def _word(self) -> str:
        parts = self._random.choices(SYLLABLES, k=self._random.choice((1, 2)))
        return ("".join(parts) + self._choose(SYLLABLES)).capitalize()

    def _name(self, names: Sequence[str]) -> str:
        return self._word() if self._random.random() < 0.5 else self._choose(names)

    def questions(self, num_others: int) -> Iterator[tuple[str, str, list[str]]]:
        """Endless questions: each with the sentence that answers it, and others that do not."""
        while True:
            fact, other_fact = self._random.sample(list(FACTS), 2)
            subject, stranger = self._word(), self._word()
            wrong = [(fact, stranger), (other_fact, subject), (other_fact, stranger)]
            distractors = [self._sentence(*wrong[index % 3]) for index in range(num_others)]
            question = self._random.choice(FACTS[fact][0]).format(s=subject)
            yield question, self._sentence(fact, subject), distractors

    def _sentence(self, fact: str, subject: str) -> str:
        return self._random.choice(FACTS[fact][1]).format(s=subject, v=self._word())

    def pairs(self) -> Iterator[Pair]:
        """Endless; half of the sentences answer their question."""
        for question, answer, distractors in self.questions(3):
            yield Pair(question, answer, True)
            yield Pair(question, self._random.choice(distractors), False)

    def marked_sentences(self) -> Iterator[Marked]:
        """Endless sentences, with the people, places and dates in them."""
        templates, held_out = SENTENCES[:-NUM_HELD_OUT], SENTENCES[-NUM_HELD_OUT:]
        while True:
            yield self._fill(self._random.choice(held_out if self._held_out else templates))

    def _fill(self, template: str) -> Marked:
        text, spans = "", list[tuple[str, int, int]]()
        for index, part in enumerate(re.split(r"\{(\w+)\}", template)):
            value = self._value(part) if index % 2 else part
            if index % 2:
                spans.append((part, len(text), len(text) + len(value)))
            text += value
        return Marked(text, spans)

    def _value(self, kind: str) -> str:
        if kind == "PER":
            first, last = self._name(FIRST), self._name(LAST)
            return self._random.choice((first, f"{first} {last}", f"{first} {last}"))
        if kind == "LOC":
            return self._name(PLACES)
        day, year = self._random.randint(1, 28), self._random.randint(1900, 2030)
        month = self._choose(MONTHS)
        forms = (f"{day} {month} {year}", f"{month} {day}, {year}", f"{month} {year}", str(year))
        return self._random.choice(forms)
