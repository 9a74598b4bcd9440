"""Reports of studies and sampler comparisons: self-contained HTML pages and terminal text.

Only this package imports Plotly. A page loads nothing from a network.

    wording, reading, requests, importance               numbers and facts of a study, no Plotly
    theme, axes                                          colours, fonts, ticks
    trial_marks, {search,knob,request,comparison}_figures                 record -> Plotly figure
    markup, document, tables, head, page, comparison_page                 record -> HTML
"""
