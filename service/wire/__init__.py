"""A call in, a payload out: routes, codecs, texts and their answers, telemetry. Knows no
dialect."""
