"""Search with FAISS: an index in a file, with the fingerprint in a file beside it."""

from pathlib import Path

import asking
import faiss

options = asking.parser.parse_args()
texts, vectors, stored = asking.read(options.vectors)
file, fingerprint = Path(options.index), Path(f"{options.index}.fingerprint")

if not fingerprint.exists():
    index = faiss.IndexFlatIP(vectors.shape[1])  # exact; IndexHNSWFlat for millions of rows
    index.add(vectors)
    faiss.write_index(index, str(file))
    fingerprint.write_text(stored)

index = faiss.read_index(str(file))
query = asking.embed(options, fingerprint.read_text())
scores, rows = index.search(query[None], asking.CANDIDATES)
found = zip(scores[0], rows[0], strict=True)
asking.show(options, [(score, row, texts[row]) for score, row in found if row >= 0])
