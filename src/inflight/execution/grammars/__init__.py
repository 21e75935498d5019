"""Outputs that follow a grammar: what may be drawn next, by `llguidance`.

`grammar_source` puts a request's grammar into the library's words, `vocabulary` the model's tokens; `compiled_grammars`
keeps what was compiled of both; `grammar_row` follows one running output, `grammar_rows` fills the masks of a pass.
"""
