"""Search with Qdrant in this process: a folder. With a server, only `QdrantClient` changes."""

import asking
from qdrant_client import QdrantClient, models

options = asking.parser.parse_args()
texts, vectors, stored = asking.read(options.vectors)
client = QdrantClient(path=options.index)  # or QdrantClient(url="http://localhost:6333")

if not client.collection_exists("docs"):
    size, distance = vectors.shape[1], models.Distance.DOT
    client.create_collection("docs", models.VectorParams(size=size, distance=distance))
    payload = [{"text": text, "fingerprint": stored} for text in texts]
    client.upload_collection("docs", vectors, payload, ids=range(len(texts)))

(any_point,) = client.retrieve("docs", [0])
query = asking.embed(options, any_point.payload["fingerprint"])
found = client.query_points("docs", query, limit=asking.CANDIDATES).points
asking.show(options, [(one.score, one.id, one.payload["text"]) for one in found])
client.close()
