"""The documentation site: its pages put together from docs/, from other texts of the checkout, and from the program.

`python -m website FOLDER` writes the pages and mkdocs' settings into FOLDER; mkdocs (the extra `docs`) makes the site
of them (scripts/website does both). What can be read off the program is never written by hand: options off its command
line, series off a server's metrics page, endpoints off the OpenAPI document, diagnoses off runs that are made for it.
"""
