"""From the numbers of two arms to a decision per cell and metric. Pure: no file, no clock, no engine.

`cells` collects what each launch gave, `comparability` says which arms may be compared at all, `effects` and
`estimate` turn pairs of launches into a loss with its interval, `decide` into a verdict, `compare` does all.
"""
