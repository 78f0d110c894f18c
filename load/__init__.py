"""Load: a baseline server, seeded request streams, a light client, and the comparison. A tool beside the product."""
