"""Search with pgvector. pgserver brings Postgres with pgvector, and runs it in a folder; with
a server of your own, `psycopg.connect` gets its address, and the rest stays."""

from pathlib import Path

import asking
import pgserver
import psycopg

NEAREST = "SELECT -(v <#> %(q)s::vector), row, text FROM docs ORDER BY v <#> %(q)s::vector LIMIT {}"
options = asking.parser.parse_args()
texts, vectors, stored = asking.read(options.vectors)

postgres = pgserver.get_server(Path(options.index).absolute())
with psycopg.connect(postgres.get_uri()) as connection:
    if connection.execute("SELECT to_regclass('docs')").fetchone() == (None,):
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        columns = f"row int PRIMARY KEY, text text, v vector({vectors.shape[1]}), fingerprint text"
        connection.execute(f"CREATE TABLE docs ({columns})")
        with connection.cursor().copy("COPY docs FROM STDIN") as copy:
            for row, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
                copy.write_row((row, text, str(vector.tolist()), stored))
    (made_by,) = connection.execute("SELECT fingerprint FROM docs LIMIT 1").fetchone()
    query = asking.embed(options, made_by)
    # exact without an index; CREATE INDEX ... USING hnsw (v vector_ip_ops) for millions of rows
    nearest = NEAREST.format(asking.CANDIDATES)
    found = connection.execute(nearest, {"q": str(query.tolist())}).fetchall()
asking.show(options, found)
