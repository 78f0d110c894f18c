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
Found = list[Floats]  # of each sequence its vector, or the rows of its tokens `[n, w]`


class Ways(NamedTuple):
    alone: Found
    padded: Found
    together: Found

    def num_changed(self) -> tuple[int, int]:
        """Sequences whose bits are others padded, and co-batched."""
        padded, together = (
            sum(
                one.tobytes() != other.tobytes() for one, other in zip(self.alone, way, strict=True)
            )
            for way in (self.padded, self.together)
        )
        return padded, together


def compare(theirs: Path, ours: Path, source: Source) -> Iterator[str]:
    """Lines of a table. ours: the folder of our files. UsageError for a file that cannot be run on
    this model's ids, or that makes something else."""
    other, sequences = opened(theirs), _sequences(source)
    own = {name: opened(ours / file) for name, file in FILES.items() if (ours / file).exists()}
    first, known = next(iter(own.values())), [item.name for item in other.get_outputs()]
    there = [item.name for item in first.get_outputs()]
    pairs = [(name, NAMES[name]) for name in known if NAMES.get(name) in there]
    if not pairs:
        makes = ", ".join(known)
        raise UsageError(f"--beside {theirs}: it makes {makes}, and this model {', '.join(there)}")
    output, own_output = pairs[-1]
    found = {theirs.name: _ways(other, output, sequences)}
    for precision, session in own.items():
        found[f"ours, {precision}"] = _ways(session, own_output, sequences)
    base = found[f"ours, {next(iter(own))}"]
    if found[theirs.name].alone[0].shape != base.alone[0].shape:
        shapes = found[theirs.name].alone[0].shape, base.alone[0].shape
        raise UsageError(f"--beside {theirs}: {output} has the shape {shapes[0]}, ours {shapes[1]}")
    num = len(sequences)
    yield f"{output} of {num} sequences; lowest and mean cosine to ours, {next(iter(own))}, alone"
    for who, ways in found.items():
        cells = [
            f"{name} {np.min(cosines):.7f} {np.mean(cosines):.7f}"
            for name, way in ways._asdict().items()
            if (cosines := [*map(_cosine, way, base.alone)])
        ]
        padded, together = ways.num_changed()
        changed = f"other bits padded {padded}, co-batched {together}"
        yield f"{who:24s} {'  '.join(cells)}  {changed}"


def _sequences(source: Source) -> Batch:
    """The user's texts, else some of ours; of a model without texts, seeded ids."""
    found, config = source.texts, source.model.config
    if isinstance(found, NoTexts):
        lengths = np.random.default_rng(0).integers(1, LONGEST + 1, NUM_SEEDED)
        return selfcheck.sequences(source.limits, lengths.tolist())
    tokenizer = Tokenizer.from_str(found.tokenizer.decode())
    tokenizer.enable_truncation(found.max_text_tokens)
    asked = source.wishes.texts or sample_texts.texts(tokenizer)[::EVERY]
    encoded = [item for item in tokenizer.encode_batch(asked) if item.ids]
    has_types = found.has_types and config.type_vocab_size > 1
    types = [np.array(item.type_ids) * has_types for item in encoded]
    tokens = [np.array(item.ids) for item in encoded]
    return Batch.of(tokens, types if config.type_vocab_size > 1 else None)


def opened(file: Path) -> ort.InferenceSession:
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
    every = range(len(sequences))
    order = np.random.default_rng(0).permutation(len(sequences)).tolist()
    together: dict[int, Floats] = {}
    for start in range(0, len(order), TOGETHER):
        some = order[start : start + TOGETHER]
        batch = Batch.joined([(sequences, index) for index in some])
        together.update(zip(some, _run(session, output, batch.grid()), strict=True))
    alone, padded = list[Floats](), list[Floats]()
    for index in every:
        sequence = sequences.sequence(index)
        alone += _run(session, output, sequence.grid())
        width = sequence.num_tokens + PADS
        padded += _run(session, output, selfcheck.place(sequence, width, "right"))
    return Ways(alone, padded, [together[index] for index in every])


def _run(session: ort.InferenceSession, output: str, grid: Grid) -> Found:
    """-> for each row of the grid its vector, or the rows of its real tokens."""
    types = np.zeros_like(grid.input_ids) if grid.token_type_ids is None else grid.token_type_ids
    cells = {**grid._asdict(), "token_type_ids": types}
    wanted = [item.name for item in session.get_inputs()]
    if unknown := [name for name in wanted if name not in cells]:
        raise UsageError(f"--beside: the file wants {', '.join(unknown)}, which texts do not have")
    (made,) = session.run([output], {name: cells[name] for name in wanted})
    real = grid.attention_mask != 0
    return [row[mask] if made.ndim == 3 else row for row, mask in zip(made, real, strict=True)]


def _cosine(one: Floats, other: Floats) -> float:
    """The cosine of two vectors, or of the means of two sequences' rows."""
    a, b = (np.atleast_2d(values).mean(0, dtype=np.float64) for values in (one, other))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
