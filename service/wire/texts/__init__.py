"""What all protocols share: texts and ids to sequences, and tasks over texts."""
