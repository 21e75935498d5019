"""Charts as SVG, written by hand: axes, lines and areas are a few hundred lines here, where a plotting library would be
40 MB of dependencies, could not take its colours from the page (light, dark, print), and would not merge a hundred
thousand steps to the pixels that show them.
"""
