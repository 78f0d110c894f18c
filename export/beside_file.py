"""`addnorm export --beside FILE`: an ONNX file that the user runs today beside ours, on the same
token ids: how far apart the two are, and how many texts have other bits padded or co-batched.

Nothing of the other file is served or kept. Both run as onnxruntime runs any file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from addnorm.export.graphs.standalone import EMBEDDING, HIDDEN, LOGITS
from addnorm.export.onnx_folder import FILES
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError
from addnorm.export.words import sample_texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Floats, Grid
from addnorm.service.engine.session import is_of_onnxruntime

TOGETHER, PADS, EVERY = 32, 16, 4  # sequences in a batch, pads of one, and which of our texts
LONGEST, NUM_SEEDED = 64, 256  # sequences of a model without texts
NAMES = {HIDDEN: HIDDEN, "token_embeddings": HIDDEN, LOGITS: LOGITS, EMBEDDING: EMBEDDING}
Answers = list[Floats]  # of each sequence its vector, or the rows of its tokens `[n, w]`


class Ways(NamedTuple):
    alone: Answers
    padded: Answers
    together: Answers

    def num_changed(self) -> tuple[int, int]:
        """Sequences whose bits are others padded, and co-batched."""
        padded, together = (
            sum(
                alone_rows.tobytes() != rows.tobytes()
                for alone_rows, rows in zip(self.alone, way, strict=True)
            )
            for way in (self.padded, self.together)
        )
        return padded, together


def compare(their_file: Path, our_folder: Path, source: Source) -> Iterator[str]:
    """Lines of a table. UsageError for a file that cannot be run on this model's ids, or that makes
    something else."""
    their_session, sequences = open_session(their_file), _sequences(source)
    our_sessions = {
        name: open_session(our_folder / file)
        for name, file in FILES.items()
        if (our_folder / file).exists()
    }
    their_outputs = [node.name for node in their_session.get_outputs()]
    our_outputs = [node.name for node in next(iter(our_sessions.values())).get_outputs()]
    pairs = [(name, NAMES[name]) for name in their_outputs if NAMES.get(name) in our_outputs]
    if not pairs:
        makes = ", ".join(their_outputs)
        raise UsageError(
            f"--beside {their_file}: its outputs are {makes}, this model's are"
            f" {', '.join(our_outputs)}"
        )
    output, own_output = pairs[-1]
    first_precision, first = next(iter(our_sessions)), sequences.sequence(0).grid()
    both = ((their_session, output), (our_sessions[first_precision], own_output))
    shapes = [_run(session, name, first)[0].shape for session, name in both]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"--beside {their_file}: {output} has the shape {shapes[0]}, our output has {shapes[1]}"
        )
    ways_by_file = {their_file.name: _ways(their_session, output, sequences)}
    for precision, session in our_sessions.items():
        ways_by_file[f"ours, {precision}"] = _ways(session, own_output, sequences)
    base = ways_by_file[f"ours, {first_precision}"]
    num = len(sequences)
    yield f"{output} of {num} sequences; lowest and mean cosine to ours, {first_precision}, alone"
    for who, ways in ways_by_file.items():
        cells = [
            f"{name} {np.min(cosines):.7f} {np.mean(cosines):.7f}"
            for name, way in ways._asdict().items()
            if (cosines := [*map(_cosine, way, base.alone)])
        ]
        padded, together = ways.num_changed()
        change_words = f"different bits padded {padded}, co-batched {together}"
        yield f"{who:24s} {'  '.join(cells)}  {change_words}"


def _sequences(source: Source) -> Batch:
    """The user's texts, else some of ours; of a model without texts, seeded ids."""
    texts, config = source.texts, source.model.config
    if isinstance(texts, NoTexts):
        lengths = np.random.default_rng(0).integers(1, LONGEST + 1, NUM_SEEDED)
        return selfcheck.sequences(source.limits, lengths.tolist())
    tokenizer = Tokenizer.from_str(texts.tokenizer.decode())
    tokenizer.enable_truncation(texts.max_text_tokens)
    lines = source.wishes.texts or sample_texts.texts(tokenizer)[::EVERY]
    encodings = [encoding for encoding in tokenizer.encode_batch(lines) if encoding.ids]
    has_types = texts.has_types and config.type_vocab_size > 1
    types = [np.array(encoding.type_ids) * has_types for encoding in encodings]
    tokens = [np.array(encoding.ids) for encoding in encodings]
    return Batch.of(tokens, types if config.type_vocab_size > 1 else None)


def open_session(file: Path) -> ort.InferenceSession:
    """UsageError if it cannot be loaded."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if not is_of_onnxruntime(error):
            raise
        raise UsageError(f"--beside: onnxruntime cannot load {file}: {error}") from error


def _ways(session: ort.InferenceSession, output: str, sequences: Batch) -> Ways:
    indices = range(len(sequences))
    order = np.random.default_rng(0).permutation(len(sequences)).tolist()
    together: dict[int, Floats] = {}
    for start in range(0, len(order), TOGETHER):
        chunk = order[start : start + TOGETHER]
        batch = Batch.joined([(sequences, index) for index in chunk])
        together.update(zip(chunk, _run(session, output, batch.grid()), strict=True))
    alone, padded = list[Floats](), list[Floats]()
    for index in indices:
        sequence = sequences.sequence(index)
        alone += _run(session, output, sequence.grid())
        width = sequence.num_tokens + PADS
        padded += _run(session, output, selfcheck.place(sequence, width, "right"))
    return Ways(alone, padded, [together[index] for index in indices])


def _run(session: ort.InferenceSession, output: str, grid: Grid) -> Answers:
    """-> for each row of the grid its vector, or the rows of its real tokens."""
    types = np.zeros_like(grid.input_ids) if grid.token_type_ids is None else grid.token_type_ids
    cells = {**grid._asdict(), "token_type_ids": types}
    input_names = [node.name for node in session.get_inputs()]
    if unknown := [name for name in input_names if name not in cells]:
        raise UsageError(
            f"--beside: the file has the inputs {', '.join(unknown)}, which cannot be computed"
            " from texts"
        )
    (values,) = session.run([output], {name: cells[name] for name in input_names})
    real = grid.attention_mask != 0
    return [row[mask] if values.ndim == 3 else row for row, mask in zip(values, real, strict=True)]


def _cosine(vector: Floats, base: Floats) -> float:
    """The cosine of two vectors, or of the means of two sequences' rows."""
    a, b = (np.atleast_2d(rows).mean(0, dtype=np.float64) for rows in (vector, base))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
