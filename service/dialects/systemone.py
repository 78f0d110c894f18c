"""TypeSafe's System One: typed decisions. Questions about one state, each with its options; the
answer has a probability for each option.

Each option makes a pair with the state, and is a sequence of its own: what else is asked changes no
bit of an answer. Source: TypeSafe's SDK for Python, and jevcompat, which pins the API down.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import Field, PlainValidator, ValidationInfo

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import decision
from addnorm.service.asking.tasks.classification import entailment_index, probabilities
from addnorm.service.asking.tasks.window_scores import Joining, join
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.outputs import Logits
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.codec.validation import Strict, fit
from addnorm.service.wire.dialect_errors import SYSTEM_ONE_ERRORS
from addnorm.service.wire.route import Protocol, Route
from addnorm.service.wire.texts.json_answers import JsonAnswer, span_fields
from addnorm.service.wire.texts.sequences import to_tokenize
from addnorm.service.wire.texts.text_tasks import by_window, known_label
from addnorm.service.wire.texts.texts import Wish, check_size, json_bytes
from addnorm.service.wire.tools import Tools

ANY_MODEL = "jev-latest"  # what TypeSafe's SDKs ask for by default: the one that can decide
MAX_QUESTIONS, MAX_OPTIONS, MAX_LEVELS = 64, 255, 10
OPTION_BYTES, QUESTION_BYTES = 30, 150  # of an answer as JSON, beside the caller's own words
Content = str | dict[str, Any] | list[Any]  # all but a text is read as its JSON


class NoulCriteria(Strict):
    true: Content | None = None
    false: Content | None = None


class Question(Strict):
    instructions: Content | None = Field(None, description="What is to be decided.")

    def options(self) -> dict[str, str]:
        """Name of each option -> what it says."""
        raise NotImplementedError

    def answer(self, shares: list[float]) -> dict[str, Any]:
        raise NotImplementedError


class NoulQuestion(Question):
    type: Literal["noul"]
    criteria: NoulCriteria | None = Field(None, description="What yes and no mean.")

    def options(self) -> dict[str, str]:
        criteria = self.criteria or NoulCriteria()
        if self.instructions is None and criteria == NoulCriteria():
            raise InvalidInput("instructions and criteria are missing: send one of them")
        return {"false": as_text(criteria.false or "no"), "true": as_text(criteria.true or "yes")}

    def answer(self, shares: list[float]) -> dict[str, Any]:
        return {"type": "noul", "noul": shares[1]}


class ChoiceQuestion(Question):
    type: Literal["choice"]
    criteria: dict[str, Content | None] = Field(
        min_length=2,
        max_length=MAX_OPTIONS,
        description="The options, each with a description or null.",
    )

    def options(self) -> dict[str, str]:
        return {
            name: f"{name}: {as_text(criterion)}" if criterion else name
            for name, criterion in self.criteria.items()
        }

    def answer(self, shares: list[float]) -> dict[str, Any]:
        by_name = dict(zip(self.criteria, shares, strict=True))
        return {
            "type": "choice",
            "choice": max(by_name, key=by_name.__getitem__),
            "probabilities": by_name,
            "confidence": decision.choice_confidence(shares),
        }


class ScoreQuestion(Question):
    type: Literal["score"]
    criteria: list[Content] = Field(
        min_length=2, max_length=MAX_LEVELS, description="What each level means, from 0."
    )

    def options(self) -> dict[str, str]:
        return {str(level): as_text(criterion) for level, criterion in enumerate(self.criteria)}

    def answer(self, shares: list[float]) -> dict[str, Any]:
        levels = {str(level): criterion for level, criterion in enumerate(self.criteria)}
        return {
            "type": "score",
            "score": decision.expectation(shares),
            "confidence": decision.score_confidence(shares),
            "legend": levels,
            "probabilities": dict(zip(levels, shares, strict=True)),
        }


KINDS: dict[str, type[Question]] = {
    "noul": NoulQuestion, "choice": ChoiceQuestion, "score": ScoreQuestion,
}  # fmt: skip


def _questions(value: Any, validation: ValidationInfo) -> dict[str, Question]:
    """InvalidInput names the question. Its name is the caller's own text, and no field."""
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_QUESTIONS:
        got = f"{len(value)} questions" if isinstance(value, dict) else shown(value)
        raise InvalidInput(
            f"questions: Input should be an object of 1 to {MAX_QUESTIONS} questions, got {got}",
            param="questions",
        )
    questions = {}
    for name, fields in value.items():
        kind = fields.get("type") if isinstance(fields, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            raise InvalidInput(
                f"questions.{name[:60]}: its type should be {', '.join(KINDS)}, got {shown(kind)}",
                param="questions",
            )
        try:
            questions[name] = fit(KINDS[kind], fields, validation.context)
            questions[name].options()
        except InvalidInput as error:
            raise InvalidInput(
                f"questions.{name[:60]}.{error.message}", param="questions"
            ) from None
    return questions


class SystemOneRequest(Strict):
    """TypeSafe's fields."""

    model: str | None = Field(
        None, description=f"By default, and for `{ANY_MODEL}`, the one model that can decide."
    )
    state: Content = Field(description="What the questions are about.")
    questions: Annotated[
        dict[str, Question],
        PlainValidator(_questions, dict[str, NoulQuestion | ChoiceQuestion | ScoreQuestion]),
    ] = Field(description=f"By the name that its answer has, 1 to {MAX_QUESTIONS}.")
    windows: WindowRule | None = Field(
        None,
        description="A state that is longer than the model takes is read in windows. By default as"
        " alias and bundle say.",
    )
    assets: Any = Field(None, description="Rejected: no images are read.")


def as_text(content: Content) -> str:
    return content if isinstance(content, str) else orjson.dumps(content).decode()


class _Options(NamedTuple):
    """The options of all questions, one after the other: question, name, what is scored."""

    questions: Mapping[str, Question]
    names: list[tuple[str, str]]
    texts: list[str]
    joinings: dict[str, Joining]  # of each question, where the state is read in windows

    def place(self, index: int, part: int | None) -> str:
        """The words by which the caller knows the state with an option."""
        question, name = self.names[index]
        option = f"questions.{question[:60]}, option {name[:60]}"
        return f"state with {option}" if part is None else ("state", option)[part]


async def decide(body: SystemOneRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field, and the question.

    An entailment model is asked whether the state entails the question with the option; a
    cross-encoder how well the state fits them. The softmax of a question's options is its answer.
    """
    if body.assets:
        raise InvalidInput("assets has images, which are not supported: send text", param="assets")
    model_name = None if body.model == ANY_MODEL not in tools.models.aliases else body.model
    model = ask.find_model(tools.models, model_name, "decide")
    options = _Options(body.questions, [], [], {})
    for name, question in body.questions.items():
        instructions = [] if question.instructions is None else [as_text(question.instructions)]
        for option, criterion in question.options().items():
            options.names.append((name, option))
            options.texts.append(" ".join([*instructions, criterion]))
    limit = tools.texts.settings.max_sequences
    check_size("questions", len(options.texts), "options together", limit)
    state, is_reranker = as_text(body.state), "rerank" in model.bundle.tasks
    pairs = [(text, state) if is_reranker else (state, text) for text in options.texts]
    wish = Wish(
        model=model_name,
        task="decide",
        field="questions",
        texts=pairs,
        named=lambda index, part: options.place(
            index, 1 - part if is_reranker and part is not None else part
        ),
        takes_prompt=False,
        can_cut=False,
    )
    texts = to_tokenize(wish, ask, tools)._replace(
        split_part=int(is_reranker),
        aligned=[len(question.options()) for question in body.questions.values()],
    )
    texts = tools.texts.in_windows(texts, body.windows, ask, cuts_hide=True)
    if texts.windows:
        options.joinings.update(_joinings(texts.windows, body))
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    ask.outputs = (Logits(),)
    words_bytes = json_bytes(name for pair in options.names for name in pair) + ask.num_body_bytes
    numbers_bytes = OPTION_BYTES * len(pairs) + QUESTION_BYTES * len(body.questions)
    ask.answer_bytes = words_bytes + numbers_bytes
    return JsonAnswer(partial(_words, options))


def _joinings(rule: WindowRule, body: SystemOneRequest) -> Iterator[tuple[str, Joining]]:
    """The joining of each question's answers. InvalidInput for a label that is no option of any."""
    options = {name: list(question.options()) for name, question in body.questions.items()}
    every_name = [option for names in options.values() for option in names]
    rule = known_label(rule, body.windows, every_name)
    if rule.label is not None and rule.label not in every_name:
        Joining.of_labels(rule, every_name, False, "questions")
    for name, labels in options.items():
        own_rule = known_label(rule, None, labels)
        yield name, Joining.of_labels(own_rule, labels, False, f"questions.{name[:60]}")


def _words(options: _Options, ask: Ask) -> dict[str, Any]:
    bundle = ask.model.bundle
    of_option = 0 if "rerank" in bundle.tasks else entailment_index(bundle.manifest.labels)
    sizes = [len(question.options()) for question in options.questions.values()]
    answers = dict[str, Any]()
    for (name, question), (windows, logits) in zip(
        options.questions.items(), by_window(ask, sizes), strict=True
    ):
        option_logits = logits[:, :, of_option]
        shares = probabilities(option_logits, "softmax")
        joining = options.joinings.get(name, Joining())
        result = join(shares, option_logits, shares, windows, joining)
        answers[name] = question.answer(result.scores.tolist())
        answers[name] |= span_fields(result.spans[0] if result.spans else None)
    return {
        "model": ask.model.answered_name,
        "answers": answers,
        "usage": {"input_tokens": ask.batch.num_tokens, "output_tokens": 0},
    }


PROTOCOL = Protocol(
    tag="System One",
    reference="https://docs.typesafe.ai",
    routes=(
        Route(
            path="/v1/systemone",
            name="system_one",
            summary="Typed decisions: yes or no, one of several, or a level, as TypeSafe's clients"
            " ask for them",
            body=SystemOneRequest,
            decode=decide,
            keeps_nulls=True,
            examples={
                "three questions": {
                    "model": "classifier",
                    "state": "Pads are dropped. They cost nothing.",
                    "questions": {
                        "free": {"type": "noul", "instructions": "Are pads free?"},
                        "about": {
                            "type": "choice",
                            "instructions": "What is it about?",
                            "criteria": {"price": "What it costs", "weather": "Rain and sun"},
                        },
                        "sure": {
                            "type": "score",
                            "instructions": "How sure is it?",
                            "criteria": ["not at all", "quite", "very"],
                        },
                    },
                }
            },
        ),
    ),
    errors=SYSTEM_ONE_ERRORS,
)
