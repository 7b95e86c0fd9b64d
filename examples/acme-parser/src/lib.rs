//! A parser for a made-up format, the subject of the tutorial.
