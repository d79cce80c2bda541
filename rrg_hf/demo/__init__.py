"""The main job on the phantom, end to end: `rrg demo`. See `run.py` for the job and `recipe.py` for its sizes."""
