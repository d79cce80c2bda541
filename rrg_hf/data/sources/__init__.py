"""Readers of published data sets, one file a data set. Each turns the released files into `Study` rows."""
