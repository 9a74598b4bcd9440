"""Reports of studies and of sampler comparisons: self-contained HTML files, text for a terminal.

In: `StudyRecord` or `ComparisonRecord`. Out: text (`page.render`, `comparison_page.render`), files
(`files`), a rich renderable (`terminal`). Everything but `files` is pure. Plotly is imported in
this room only. No page loads anything from a network: the library, the style and the data are
inside, and a content security policy forbids the rest.

    wording, objective, reading, requests, importance    numbers and facts of a study, no Plotly
    theme, axes                                          colours, fonts, ticks
    trial_marks, {search,knob,request,comparison}_figures                 record -> Plotly figure
    markup, document, tables, head, page, comparison_page                 record -> HTML
"""
