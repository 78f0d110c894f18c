"""Search with LanceDB: a folder, into which the Parquet file goes with all its columns."""

import asking
import lancedb
import pyarrow as pa

options = asking.parser.parse_args()
texts, vectors, stored = asking.read(options.vectors)
database = lancedb.connect(options.index)

if "docs" not in database.list_tables().tables:
    columns = {"row": range(len(texts)), "text": texts}
    table = pa.table(columns).append_column(
        "vector", pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    )
    database.create_table("docs", table.replace_schema_metadata({"fingerprint": stored}))

docs = database.open_table("docs")  # without `create_index` its search is exact
query = asking.embed(options, docs.schema.metadata[b"fingerprint"].decode())
found = docs.search(query).metric("dot").limit(asking.CANDIDATES).to_list()
asking.show(options, [(1 - one["_distance"], one["row"], one["text"]) for one in found])
