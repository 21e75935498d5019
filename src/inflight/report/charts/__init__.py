"""Charts and pictures. What any library draws (lines, areas, columns, points) is data for uPlot, with a table of the
same values. The batch, the requests in it and the memory they hold are pictures of our own, as SVG written by hand: no
library has them, they merge a hundred thousand steps to the pixels that show them, and they need no script.
"""
