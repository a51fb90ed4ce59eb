"""One function per figure: an Altair chart, whose one Vega-Lite specification is drawn as PNG, SVG or a page."""
