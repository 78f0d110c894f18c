"""Seeded texts and models that experiments and tests are made of."""
