"""Data: the study schema, image reading, sources, the phantom, storage and collators. Import what you need."""
