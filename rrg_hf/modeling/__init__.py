"""Models as they stand on the Hub. Each folder loads alone, as custom code, and imports nothing else of rrg_hf."""
