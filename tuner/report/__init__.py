"""Reports of studies and sampler comparisons: self-contained HTML pages and terminal text.

    study/, open_loop, requests, importance            facts about a study, without Plotly
    theme, axes, formatting                            colours, fonts, ticks, numbers
    *_figures, {benchmark,comparison}/figures          record -> Plotly figure
    markup, document, tables, page_header, page, {benchmark,comparison}/page    record -> HTML
    terminal, console_text                             record -> lines of a terminal

Only this package imports Plotly. A page loads nothing from a network.
"""
