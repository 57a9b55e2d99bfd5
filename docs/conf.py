"""How Sphinx builds the site; docs/build.py puts its sources together."""

project = "fedslice"
extensions = ["myst_parser"]
exclude_patterns = ["build.py", "conf.py"]
html_theme = "furo"
html_title = "fedslice"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
highlight_language = "none"  # what is indented is a shell line or an equation
myst_heading_anchors = 4
myst_links_external_new_tab = True
smartquotes = False  # --synthetic is an option, not a dash
