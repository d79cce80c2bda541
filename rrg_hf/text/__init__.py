"""Report text: cleaning, sentences, sections and the rule labeller."""
