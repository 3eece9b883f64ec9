"""Surrogates over a range of a parameter, against specialists that know one value of it."""
