"""Charts as data for uPlot, with tables of their values; and our own pictures of the batch, requests and memory, as
SVG."""
