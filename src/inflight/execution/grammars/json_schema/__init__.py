"""JSON schemas: one dialect of all drafts, what of it the library follows, and the check of what it does not.

`dialect` reads a schema of any draft, `references` its addresses; `lowering` puts it into the library's terms, by
`conditions`, `objects`, `arrays`, `numbers`, `texts` and `values`, with what `facts` finds; `answer_check` looks at
whole answers.
"""
