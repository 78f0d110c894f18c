"""The certificate's cases from text to answer: the server against the author's own program.

Where there is no such program, as for a module of one's own, token ids are compared with
transformers' tokenizer of the folder, and vectors with the model in PyTorch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from addnorm.export.certificate import answered, tolerances, vector_ranges
from addnorm.export.certificate.answered import Array, ServedTasks, embed_by_server
from addnorm.export.reference.program import AnswersTexts, Ids, split_task
from addnorm.export.sources import Source
from addnorm.export.wishes import Text
from addnorm.export.words import sample_texts, texts
from addnorm.export.words.texts import Texts
from addnorm.model.checkpoints import sentence_transformers
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer
from addnorm.service.engine.bundle import TOKEN_WEIGHTS, TOKENIZER, Bundle
from addnorm.service.engine.tokenizer import Tokenizer as Served
from addnorm.service.errors import ServiceError
from addnorm.service.server.wiring import Service

Compare = Callable[[str], Iterable[tolerances.Result]]
SAMPLES = "samples"
SHOWN_IDS = 5  # of a text that an error shows
BATCH = 64  # texts that PyTorch is given at once
MARKS = ("\x07", "\u0301", "\u200b")  # a control character, an accent, no width
VECTORS = ("embed", "sparse")  # tasks whose answers every precision is near to
SENTENCES = (
    "LayerNorm normalizes each token across its features.",
    "Ünïcode, 中文 and [MASK]: 3.14 \u200bwords\tin  ODD places!",
)
SCRIPTS = (  # what tokenizers treat in ways of their own
    "The train to Berlin leaves at nine.",
    " white space  around\n\tand within ",
    "e\u0301te\u0301, ÉTÉ, naïve café — “quotes” … ½ ﬁnd ① İSTANBUL ı",
    "東京は晴れ。 北京今天下雨 서울은 흐리다",
    "שלום עולם \u202eمرحبا بالعالم\u202c",
    "สวัสดีชาวโลก नमस्ते दुनिया",
    "a.b@c.de https://example.org/?q=1&r=2 x = y_1 + 2023-11-05 #tag $5",
    "👩\u200d👩\u200d👧 🇫🇷 \ufeffBOM soft\u00adhyphen a\u2028b",
    "[CLS] a [SEP] <s> b </s> <mask> <|endoftext|> [PAD]",
    "donaudampfschifffahrtsgesellschaftskapitän" * 3,
)


def checks(service: Service, bundle: Bundle, source: Source) -> list[tuple[str, Compare]]:
    """The certificate's cases from text to answer, each to be called with a precision. source: with
    a folder."""
    assert source.folder
    limits, program, samples = bundle.manifest.limits, source.program, source.wishes.texts
    authors = _Authors(bundle, source.in_layout("padded"), source.folder)
    as_written = texts.is_as_written(bundle.manifest.source)
    words = texts.read(source.folder, limits.max_positions, as_written)
    # both read by the library, which reads some scores of pieces one step off
    served_tokenizer, folder_tokenizer = (
        Tokenizer.from_str(content.decode()).to_str()
        for content in ((bundle.path / TOKENIZER).read_bytes(), words.tokenizer)
    )
    num_other = int(served_tokenizer != folder_tokenizer)
    compare = partial(_against_authors, service, bundle, authors)
    cases: list[tuple[str, Compare]] = [
        (TOKENIZER, lambda _: [("unlike the folder's", num_other, 0)])
    ]
    by_program: dict[tuple[str, str], Sequence[Text]] = {}
    if program:
        by_program = texts_by_task(words, limits.max_text_tokens, program, samples)
        cases += program_cases(service, bundle, words, program, samples)
    drawn_texts = {**_cases(bundle, authors), **({SAMPLES: [*samples]} if samples else {})}
    asked_by_program = {name for _, name in by_program}
    cases += [
        (name, partial(compare, case_texts))
        for name, case_texts in drawn_texts.items()
        if name not in asked_by_program
    ]
    if bundle.manifest.vector_ranges is not None:  # older bundles have none
        cases.append(("vector ranges", partial(_ranges, service, bundle, authors)))
    return cases


def program_cases(
    service: Service,
    bundle: Bundle,
    words: Texts,
    program: AnswersTexts,
    samples: Sequence[Text] = (),
) -> list[tuple[str, Compare]]:
    """The cases from text to answer against a program: its token ids, its labels, its tasks."""
    cases: list[tuple[str, Compare]] = [
        (f"{program.name}: token ids", partial(_compare_token_ids, bundle, program))
    ]
    if words.token_weights is not None:
        weights = texts.padded_weights(words.token_weights, bundle.manifest.limits.vocab_size)
        num_unlike = int((bundle.token_weights.view("u4") != weights.view("u4")).sum())
        cases.append((TOKEN_WEIGHTS, lambda _: [("unlike the folder's", num_unlike, 0)]))
    # a person's own labels are in place of the program's
    labels = [] if "labels" in bundle.manifest.source else program.labels
    if labels:
        num_others = sum(a != b for a, b in zip_longest(labels, bundle.manifest.labels or ()))
        cases.append(
            (f"{program.name}: labels", lambda _: [("other names", num_others, 0)]),
        )
    limit = bundle.manifest.limits.max_text_tokens
    for (task, name), case_texts in texts_by_task(words, limit, program, samples).items():
        compare = partial(_against_program, service, bundle, program, task, case_texts)
        cases.append((f"{program.name}: {task}, {name}", compare))
    return cases


def texts_to_tokenize(tokenizer: bytes) -> list[str]:
    """The texts whose token ids are compared with the program's, beside those it answers."""
    return sample_texts.texts(Tokenizer.from_str(tokenizer.decode()))


def _compare_token_ids(
    bundle: Bundle, program: AnswersTexts, precision: str
) -> Iterator[tolerances.Result]:
    texts = texts_to_tokenize((bundle.path / TOKENIZER).read_bytes())
    served = [encoding.ids for encoding in Served(bundle).encode(texts, truncate=False)]
    difference = sample_texts.compare(texts, served, program.token_ids(texts))
    yield f"texts with other token ids: {difference}", difference.num, 0


def texts_by_task(
    authors_texts: Texts, limit: int, program: AnswersTexts, samples: Sequence[Text] = ()
) -> dict[tuple[str, str], Sequence[Text]]:
    """The texts or pairs that the program is asked for, by the task and the case."""
    tokenizer = Tokenizer.from_str(authors_texts.tokenizer.decode())
    words = _words(tokenizer, limit)
    # in a text, to some programs it is none of it
    if pad := authors_texts.special_tokens.get("pad_token"):
        words = [text.replace(pad, " ") for text in words]
    scripts = [text.replace(pad, " ") if pad else text for text in SCRIPTS]
    single: dict[str, Sequence[Text]] = {
        "texts": [*SENTENCES, *scripts, *words],
        f"texts cut to {limit}": [" ".join(words) * 3, (" ".join(SENTENCES) + " ") * limit],
    }
    pairs: dict[str, Sequence[Text]] = {
        "pairs": [("a", "b"), SENTENCES, ("water", SCRIPTS[3]), (SCRIPTS[1], "b")]
    }
    if not authors_texts.pair_template:
        pairs[f"pairs cut to {limit}"] = _cut_pairs(" ".join(words), limit)
    both = single if authors_texts.pair_template else {**single, **pairs}
    some_texts: dict[str, Sequence[Text]] = {"texts": [*SENTENCES, *scripts[:3]]}
    cases = {task: some_texts if split_task(task)[1] else single for task in program.tasks}
    cases |= {task: pairs for task in answered.PAIRS if task in cases}
    cases |= {task: both for task in answered.BOTH if task in cases}
    if samples:
        cases = {
            task: {**named_texts, SAMPLES: _samples_for(samples, task)}
            for task, named_texts in cases.items()
        }
    if "fill_mask" in cases:  # which takes texts with a mask alone, and does not cut them
        mask = program.mask_token
        texts = [f"{mask}", f"a {mask} b", f"{mask} a {mask}"]
        fits = [text for text in texts if len(tokenizer.encode(text).ids) <= limit]
        cases["fill_mask"] = {"masks": fits}
    # the server rejects texts without tokens
    return {
        (task, name): [text for text in case_texts if _has_tokens(tokenizer, text)]
        for task, named_texts in cases.items()
        for name, case_texts in named_texts.items()
    }


def _has_tokens(tokenizer: Tokenizer, text: Text) -> bool:
    first, second = (text, None) if isinstance(text, str) else text
    return bool(tokenizer.encode(first, second).ids)


def _samples_for(samples: Sequence[Text], task: str) -> list[Text]:
    """Samples as a task takes them: where it takes pairs alone, a text goes with the next one, and
    where it takes none, the two texts of a pair are two."""
    if task in answered.BOTH:
        return [*samples]
    single = [part for text in samples for part in ([text] if isinstance(text, str) else text)]
    if task not in answered.PAIRS:
        return [*single]
    if any(isinstance(text, tuple) for text in samples):
        return [text for text in samples if isinstance(text, tuple)]
    return [*zip(single, [*single[1:], single[0]], strict=True)]


def _against_program(
    service: Service,
    bundle: Bundle,
    program: AnswersTexts,
    task: str,
    texts: Sequence[Text],
    precision: str,
) -> Iterator[tolerances.Result]:
    """Compares the server's token ids, their types, and what it answers."""
    try:
        answers = ServedTasks(service, bundle, precision).answer(task, texts)
    except ServiceError as error:
        yield f"refused: {error.message}", 1, 0
        return
    expected = [program.answer(task, text) for text in texts]
    yield from _ids(
        bundle, texts, *([answer.ids for answer in side] for side in (answers, expected))
    )
    both = [*zip(answers, expected, strict=True)]
    if any(served.ids.tokens != authors.ids.tokens for served, authors in both):
        return  # the author's ids may be ones that the model lacks
    shapes = [(served.value.shape, authors.value.shape) for served, authors in both]
    if unlike := [f"{served} for {authors}" for served, authors in shapes if served != authors]:
        yield f"numbers: {unlike[0]}", len(unlike), 0
        return
    if precision == "fp32" or split_task(task)[0] in VECTORS:
        both = [pair for pair in both if pair[1].value.size]  # a text may have no token to tag
        if not both:
            return
        got, numbers = (
            np.concatenate([np.atleast_2d(answer.value) for answer in side])
            for side in zip(*both, strict=True)
        )
        if split_task(task)[0] == "tag":  # labels and places, and a score
            yield "other labels or places", int((got[:, :-1] != numbers[:, :-1]).any(1).sum()), 0
            got, numbers = got[:, -1:], numbers[:, -1:]
        if got.size:
            yield from tolerances.vectors(task, got, numbers, precision)


def _ids(
    bundle: Bundle, texts: Sequence[Text], served: Sequence[Ids], expected: Sequence[Ids]
) -> Iterator[tolerances.Result]:
    tokens = ([ids.tokens for ids in side] for side in (served, expected))
    yield _unlike("ids", texts, *tokens)
    if bundle.manifest.limits.type_vocab_size > 1:  # other models ignore types
        types = ([ids.types for ids in side] for side in (served, expected))
        yield _unlike("types", texts, *types)


def _unlike(
    kind: str, texts: Sequence[Text], served: Sequence[list[int]], expected: Sequence[list[int]]
) -> tolerances.Result:
    """The number of texts that differ. The shortest is shown, from where it differs."""
    name = f"texts with other token {kind}"
    rows = zip(texts, served, expected, strict=True)
    unlike = [(text, ids, authors_ids) for text, ids, authors_ids in rows if ids != authors_ids]
    if not unlike:
        return name, 0, 0
    text, ids, authors_ids = min(unlike, key=lambda row: len("".join(row[0])))
    first = next(place for place, (a, b) in enumerate(zip_longest(ids, authors_ids)) if a != b)
    ids, authors_ids = (side[first : first + SHOWN_IDS] for side in (ids, authors_ids))
    example = f"such as {text!a:.60}: from place {first} on {ids}, by its authors {authors_ids}"
    return f"{name}, {example}", len(unlike), 0


def _cases(bundle: Bundle, authors: "_Authors") -> dict[str, Sequence[Text]]:
    limits = bundle.manifest.limits
    limit = limits.max_text_tokens
    tokenizer, pad_id = Tokenizer.from_file(str(bundle.path / TOKENIZER)), limits.pad_id
    words = _words(tokenizer, limit)
    # the server rejects it inside a text
    if pad := None if pad_id is None else tokenizer.id_to_token(pad_id):
        words = [text.replace(pad, " ") for text in words]
    cases: dict[str, Sequence[Text]] = {
        "texts": [*SENTENCES, *words],
        f"texts cut to {limit}": [" ".join(words) * 3, (" ".join(SENTENCES) + " ") * limit],
    }
    if authors.ids("").tokens:
        cases["an empty text"] = [""]
    if bundle.manifest.pair_template:
        # those that fit, and a first one: where authors cut, the end of their template is lost
        first, *longer_pairs = [("a", "b"), SENTENCES, (SENTENCES[1], "")]
        cases["pairs in their template"] = [
            first,
            *(pair for pair in longer_pairs if len(authors.ids(pair).tokens) <= limit),
        ]
    elif authors.num_special_of_pair < limit:
        cases["pairs"] = [("a", "b"), ("a", ""), ("", "a")]
        cases[f"pairs cut to {limit}"] = _cut_pairs(" ".join(words), limit)
    return cases


def _cut_pairs(words: str, limit: int) -> list[Text]:
    """Pairs that are over the limit. The longest of their texts is cut first."""
    endless, long = (" ".join(SENTENCES) + " ") * limit, words[: 8 * limit]
    return [(endless, "a"), ("a", endless), (long, SENTENCES[1]), (long, long)]


def _words(tokenizer: Tokenizer, limit: int) -> list[str]:
    """Seeded texts of the vocabulary's own words, every second one in capitals, some with
    characters in them that tokenizers take out."""
    vocabulary = sorted(tokenizer.get_vocab())
    drawn = np.random.default_rng(0).choice(vocabulary, (8, max(1, limit // 4)))
    texts = [[word.removeprefix("##") for word in text] for text in drawn]
    for text in texts:
        text[1::2] = map(str.upper, text[1::2])
    for text, mark in zip(texts, MARKS, strict=False):
        text[::3] = [word[:1] + mark + word[1:] for word in text[::3]]
    return [" ".join(text) for text in texts]


class _Authors:
    """Token ids by transformers, vectors by PyTorch, as sentence-transformers makes them."""

    def __init__(self, bundle: Bundle, reference: Transformer, folder: Path) -> None:
        self.manifest, self.reference = bundle.manifest, reference
        prompts, default = self.manifest.prompts, self.manifest.default_prompt_name
        if self.manifest.default_input_type != "document":  # `embed_by_server` sends documents
            default = self.manifest.input_types["document"].prompt_name
        prompt, is_classifier = prompts.get(default or "", ""), "classify" in bundle.tasks
        self.prompt, self.pair_prompt = ("", prompt) if is_classifier else (prompt, "")
        contents = sentence_transformers.read(folder)
        as_written = texts.is_as_written(self.manifest.source)
        self.tokenizer = texts.load_tokenizer(contents, as_written)
        self.template = texts.template_arguments(contents)
        self.num_special_of_pair = self.tokenizer.num_special_tokens_to_add(pair=True)
        self._made: dict[str, Array] = {}

    def vectors(self, texts: Sequence[Ids]) -> Array:
        """A vector for each of the texts `[n, w]`. Computed once, whatever the precision."""
        key = repr(texts)
        if key not in self._made:
            order = sorted(range(len(texts)), key=lambda index: len(texts[index].tokens))
            vectors = [
                self._batch_by_torch([texts[index] for index in order[start:][:BATCH]])
                for start in range(0, len(texts), BATCH)
            ]
            self._made[key] = np.concatenate(vectors)[np.argsort(order)]
        return self._made[key]

    def _batch_by_torch(self, texts: Sequence[Ids]) -> Array:
        width = max(len(ids.tokens) for ids in texts)
        tokens, types, mask = (torch.zeros(len(texts), width, dtype=torch.int64) for _ in range(3))
        for row, ids in enumerate(texts):
            tokens[row, : len(ids.tokens)] = torch.tensor(ids.tokens)
            types[row, : len(ids.types)] = torch.tensor(ids.types)
            mask[row, : len(ids.tokens)] = 1
        with torch.no_grad():
            rows = self.reference(tokens, mask, types)[0]
            if "pooled" in self.reference.heads:
                vectors = self.reference.head("pooled", rows, mask)
            else:
                vectors = pick_vectors(self.manifest.pooling, rows, mask)
            if self.manifest.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        array: Array = vectors.numpy()
        return array

    def ids(self, text: Text) -> Ids:
        """Cut to the limit. The default prompt stands before a single text; a classifier's stands
        before a pair."""
        if self.manifest.pair_template and not isinstance(text, str):
            instruction, settings = self.template
            prompt = texts.render_pair(self.tokenizer, instruction, *text, settings)
            tokens = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
            return Ids([*tokens], [0] * len(tokens))
        parts: tuple[str, ...]
        if isinstance(text, str):
            parts = (self.prompt + text,)
        else:
            parts = (self.pair_prompt + text[0], text[1])
        # in lists: outside of them transformers takes an empty second text for none
        cut = self.tokenizer(
            *([part] for part in parts),
            truncation=True,
            max_length=self.manifest.limits.max_text_tokens,
        )
        (tokens,) = cut["input_ids"]
        types = [0] * len(tokens)
        if self.manifest.limits.type_vocab_size > 1:
            (types,) = cut.get("token_type_ids", [types])
        return Ids(list(tokens), list(types))


def _against_authors(
    service: Service, bundle: Bundle, authors: _Authors, texts: Sequence[Text], precision: str
) -> Iterator[tolerances.Result]:
    """Compares the server's token ids, their types, and the vectors of these texts."""
    sent = [text if isinstance(text, str) else [*text] for text in texts]
    try:
        ids, vectors = embed_by_server(service, bundle.manifest, sent, precision)
    except ServiceError as error:
        yield f"refused: {error.message}", 1, 0
        return
    expected = [authors.ids(text) for text in texts]
    yield from _ids(bundle, texts, ids, expected)
    if all(
        got.tokens == authors_ids.tokens for got, authors_ids in zip(ids, expected, strict=True)
    ):
        yield from tolerances.vectors("pooled", vectors, authors.vectors(expected), precision)


def _ranges(
    service: Service, bundle: Bundle, authors: _Authors, precision: str
) -> Iterator[tolerances.Result]:
    """Ranges of the served vectors against PyTorch's, and the manifest's against those served."""
    manifest = bundle.manifest
    ids, vectors = vector_ranges.embed_calibration_texts(service, bundle, precision)
    served = vector_ranges.ranges_with_margins(vectors)
    expected = vector_ranges.ranges_with_margins(authors.vectors(ids))
    yield from tolerances.ranges(served, expected, precision)
    if precision != vector_ranges.precision_of(manifest):
        return
    recorded = np.array(manifest.vector_ranges, np.float32)
    if recorded.shape != served.shape:
        yield f"recorded ranges of shape {recorded.shape}, {served.shape} expected", 1, 0
        return
    for output, difference, limit in tolerances.ranges(recorded, served, precision):
        yield f"recorded {output}", difference, limit
